"""Streaming metrics give the numbers of the whole data: in batches, in processes, in a collection, in Lightning."""

import copy
import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

import howsure as hs
from howsure import metrics
from howsure.distributions import Transform

pytestmark = pytest.mark.extras
torchmetrics = pytest.importorskip("torchmetrics")
streaming = pytest.importorskip("howsure.metrics.streaming")

LEVELS = [0.9, 0.1, 0.5]  # in no order
HALVES = np.array([0.25, 0.5, 0.75, 1.0])
FUNCTIONS = {
    "rmse": (streaming.RMSE, metrics.rmse),
    "mae": (streaming.MAE, metrics.mae),
    "nll": (streaming.NLL, metrics.nll),
    "crps": (streaming.CRPS, metrics.crps),
    "interval_score": (partial(streaming.IntervalScore, 0.8), partial(metrics.interval_score, coverage=0.8)),
    "interval_width": (
        partial(streaming.IntervalWidth, 0.8),
        lambda p, y, mask=None: metrics.summary(p, y, coverage=0.8, mask=mask)["interval_width"],
    ),
    "coverage": (streaming.Coverage, metrics.coverage),
    "coverage_half": (partial(streaming.Coverage, 0.5), partial(metrics.coverage, coverage=0.5)),
    "coverage_curve": (partial(streaming.CoverageCurve, LEVELS), partial(metrics.coverage_curve, coverage=LEVELS)),
    "calibration_curve": (streaming.CalibrationCurve, metrics.calibration_curve),
    "calibration_error": (streaming.CalibrationError, metrics.calibration_error),
    "calibration_error_3": (
        partial(streaming.CalibrationError, LEVELS),
        partial(metrics.calibration_error, quantiles=LEVELS),
    ),
    "pit": (
        partial(streaming.PITHistogram, 4),
        lambda p, y, mask=None: np.diff(metrics.calibration_curve(p, y, HALVES, mask=mask), prepend=0),
    ),
    "retention": (streaming.RetentionCurve, metrics.retention_curve),
    "ause": (streaming.AUSE, metrics.ause),
    "ause_mae": (
        partial(streaming.AUSE, "aleatoric", "mae"),
        partial(metrics.ause, uncertainty="aleatoric", error="mae"),
    ),
    "aurg": (streaming.AURG, metrics.aurg),
}


def test_bootstrapped_metric_draws_rows():
    """The spread over bootstrap samples is the standard error of the mean, for distributions and predictions."""
    answer, y = hs.Mixture(hs.Normal(torch.randn(3, 400), 1.0)), torch.randn(400)
    terms = answer.crps(y)
    expected = terms.std() / 20
    for given in (answer, hs.Prediction(answer)):
        for strategy in ("poisson", "multinomial"):
            metric = streaming.BootStrapper(streaming.CRPS(), num_bootstraps=300, sampling_strategy=strategy)
            metric.update(given, y)
            found = metric.compute()
            assert found["mean"].item() == pytest.approx(terms.mean().item(), abs=5 * expected.item() / 300**0.5)
            assert found["std"].item() == pytest.approx(expected.item(), rel=0.25)


@pytest.mark.parametrize("name", ["CRPS", "Coverage", "CoverageCurve", "PITHistogram", "RetentionCurve", "AUSE"])
def test_plots(name):
    pytest.importorskip("matplotlib").use("agg")
    metric = getattr(streaming, name)()
    metric.update(evidential(50), torch.randn(50))
    _, ax = metric.plot()
    assert bool(ax.lines) or bool(ax.collections)


def evidential(*shape, dtype=torch.float32):
    raw = torch.randn(*shape, 4, dtype=dtype)
    return hs.NormalInverseGamma.from_raw(raw)


def mixture(rows):
    return hs.Mixture(evidential(3, rows).predictive(), weights=torch.tensor([1.0, 2.0, 0.0]))


def with_familiarity(rows):
    """Evidence that was computed: the paper's decomposition is the default."""
    return hs.Prediction(evidential(rows), familiarity=torch.rand(rows))


def positive(rows):
    """Targets that cannot be negative, a fifth of them exactly 0, a value of positive probability."""
    answer = hs.Normal(0.3 + torch.randn(rows), torch.rand(rows) + 0.3)
    return hs.Prediction(answer, transform=Transform("positive", 1.0, 0.4))


ANSWERS = {
    "evidential": lambda rows: evidential(rows),
    "float64": lambda rows: evidential(rows, dtype=torch.float64),
    "gaussian": lambda rows: hs.Normal(torch.randn(rows), torch.rand(rows) + 0.5),
    "two targets": lambda rows: evidential(rows, 2),
    "images": lambda rows: evidential(rows, 3, 5),
    "mixture": mixture,
    "familiarity": with_familiarity,
    "members": lambda rows: hs.Prediction(evidential(rows, 4), members=-1),
    "positive": positive,
}


def batches(make, masked, sizes=(7, 1, 40, 0, 12)):
    """Return batches (distribution, y, mask): of unequal sizes, one without rows, and one without a known target."""
    found = []
    for k, size in enumerate(sizes):
        answer = make(size)
        p = answer if isinstance(answer, hs.Prediction) else hs.Prediction(answer)
        y = torch.randn(p.shape)
        y = (2 * y).clamp(min=0) if p.transform is not None else y
        mask = torch.rand(p.shape) < (0.7 if k != 1 else 0) if masked else None
        if masked:
            y[~mask] = torch.nan
        found.append((answer, y, mask))
    return found


def whole(parts):
    """Return all batches as one prediction, its targets and its mask."""
    predictions = [p if isinstance(p, hs.Prediction) else hs.Prediction(p) for p, _, _ in parts]
    mask = None if parts[0][2] is None else torch.cat([mask for *_, mask in parts])
    return hs.Prediction.cat(predictions), torch.cat([y for _, y, _ in parts]), mask


def close(found, expected):
    found = torch.stack(found) if isinstance(found, tuple) else found
    np.testing.assert_allclose(found.cpu().numpy(), np.array(expected), rtol=1e-9, atol=1e-12)


# The same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ANSWERS)
def test_batches_give_the_number_of_the_whole_data(kind, masked):
    parts = batches(ANSWERS[kind], masked)
    p, y, mask = whole(parts)
    names = set(FUNCTIONS) - ({"ause_mae"} if kind == "mixture" else set())  # a Student t does not divide its variance
    names -= {"ause_mae"} if kind == "positive" else set()
    for name in sorted(names):
        make, function = FUNCTIONS[name]
        metric = make()
        for answer, target, known in parts:
            metric.update(answer, target, known)
        close(metric.compute(), function(p, y, mask=mask))
        assert metric.count == (y.numel() if mask is None else mask.sum())


def test_numbers_of_scipy():
    loc, scale, y = torch.randn(500), torch.rand(500) + 0.5, torch.randn(500)
    normal = stats.norm(loc.double().numpy(), scale.double().numpy())
    found = torchmetrics.MetricCollection(
        [streaming.NLL(), streaming.RMSE(), streaming.Coverage(), streaming.PITHistogram(5), streaming.IntervalScore()]
    )
    for part in torch.arange(500).split(64):
        found.update(hs.Normal(loc[part], scale[part]), y[part])
    found, truth = found.compute(), y.double().numpy()
    assert found["NLL"] == pytest.approx(-normal.logpdf(truth).mean(), rel=1e-6)
    assert found["RMSE"] == pytest.approx(np.sqrt(np.mean((loc.double().numpy() - truth) ** 2)), rel=1e-12)
    low, high = normal.ppf(0.05), normal.ppf(0.95)
    assert found["Coverage"] == np.mean((low <= truth) & (truth <= high))
    np.testing.assert_allclose(found["PITHistogram"], np.histogram(normal.cdf(truth), 5, (0, 1))[0] / 500, rtol=1e-12)
    outside = np.maximum(low - truth, 0) + np.maximum(truth - high, 0)
    assert found["IntervalScore"] == pytest.approx((high - low + 20 * outside).mean(), rel=1e-6)


def test_sums_of_many_large_terms_lose_nothing():
    """A sum in float32 would be off by 1e-4 here."""
    metric = streaming.RMSE()
    y = torch.full((100_000,), 1234.5)
    for _ in range(20):
        metric.update(hs.Normal(torch.zeros(100_000), 1.0), y)
    assert metric.compute().item() == 1234.5
    assert metric.compute().dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    head = hs.NIGHead(8).to(dtype)
    with torch.no_grad():
        answer = head(torch.randn(30, 8, dtype=dtype))
    y = torch.randn(30, dtype=dtype)
    for name, (make, function) in FUNCTIONS.items():
        metric = make()
        metric.update(answer, y)
        close(metric.compute(), function(answer, y.float()))
        assert torch.is_tensor(metric.compute()) or name == "retention"


def test_column_of_targets_and_arrays_fit_as_in_the_functions():
    answer, y = evidential(6), torch.randn(6)
    metric = streaming.CRPS()
    metric.update(answer, y.unsqueeze(1))
    metric.update(answer, y.numpy(), mask=np.array([True] * 6))
    close(metric.compute(), metrics.crps(answer, y))


def test_pit_at_edges_and_ends():
    metric = streaming.PITHistogram(2)
    metric.update(hs.Normal(torch.zeros(4), 1.0), [0.0, -100.0, 100.0, 1.0])  # F = ½, 0, 1, 0.84
    assert metric.compute().tolist() == [0.5, 0.5]


class Twice:
    """A guarantee whose intervals are [−2, 2] at every coverage."""

    def ends(self, prediction, coverages):
        return np.broadcast_to(np.array([-2.0, 2.0]), (*prediction.shape, len(coverages), 2))


def test_intervals_with_a_guarantee_are_those_that_count():
    p = hs.Prediction(hs.Normal(torch.zeros(4), 1.0))
    p.guarantee = Twice()
    y = [0.0, 1.9, -2.1, 3.0]
    for make, expected in [
        (streaming.Coverage, 0.5),
        (streaming.IntervalWidth, 4.0),
        (streaming.IntervalScore, 4 + 20 * 1.1 / 4),
    ]:
        metric = make()
        metric.update(p, y)
        assert metric.compute().item() == pytest.approx(expected)
    assert metrics.coverage(p, y) == 0.5


# No targets, no finite numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_targets_are_nan_and_change_nothing(name):
    make, function = FUNCTIONS[name]
    metric, answer, y = make(), evidential(5), torch.randn(5)
    nothing = torch.zeros(5, dtype=torch.bool)
    value = metric(answer, torch.full((5,), torch.nan), nothing)  # forward: the value of the batch
    assert all(bool(each.isnan().all()) for each in (value if isinstance(value, tuple) else [value]))
    metric.update(answer, y)
    metric.update(answer, y, nothing)
    close(metric.compute(), function(answer, y))


def test_distributions_that_are_not_finite_do_not_stop_a_training():
    loc = torch.tensor([0.0, torch.nan, 0.0])
    answer = hs.Normal(loc, torch.ones(3), validate_args=False)
    for make in (streaming.NLL, streaming.RMSE, streaming.AUSE, streaming.AURG, streaming.IntervalScore):
        metric = make()
        metric.update(answer, torch.ones(3))
        assert metric.compute().isnan()
    curve = streaming.RetentionCurve()
    curve.update(answer, torch.ones(3))
    share, error = curve.compute()
    assert share.tolist() == pytest.approx([1, 2 / 3, 1 / 3])
    assert error.isnan().all()
    for make in (streaming.Coverage, streaming.CalibrationCurve, streaming.PITHistogram):
        metric = make()
        metric.update(answer, torch.ones(3))
        assert metric.compute().max() == pytest.approx(2 / 3)  # NaN lies in no interval and below no quantile


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.update(evidential(3), torch.zeros(2)), r"\by\b"),
        (lambda m: m.update(evidential(3), torch.full((3,), torch.nan)), r"\by\b"),
        (lambda m: m.update(evidential(3), torch.zeros(3), torch.ones(3)), "mask"),
        (lambda m: m.update(torch.zeros(3), torch.zeros(3)), "Tensor"),
        (lambda m: m.update(evidential(3), ["a"] * 3), "<U1"),
        (lambda m: streaming.Coverage(1.5), "coverage"),
        (lambda m: streaming.CoverageCurve([]), "coverage"),
        (lambda m: streaming.CalibrationError([[0.5]]), "quantiles"),
        (lambda m: streaming.IntervalScore(1.0), "coverage"),
        (lambda m: streaming.PITHistogram(0), "bins"),
        (lambda m: streaming.PITHistogram(2.5), "bins"),
        (lambda m: streaming.AUSE("variance"), "'variance'"),
        (lambda m: streaming.AUSE(["std"]), "uncertainty"),
        (lambda m: streaming.AUSE(error="mse"), "'mse'"),
        (lambda m: streaming.AUSE("epistemic").update(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), "epistemic"),
    ],
)
def test_errors_change_nothing(call, message):
    metric = streaming.NLL()
    metric.update(evidential(4), torch.zeros(4))
    before = metric.compute()
    with pytest.raises(hs.HowsureError, match=message):
        call(metric)
    assert metric.count == 4
    assert metric.compute() == before


# torchmetrics' contract -----------------------------------------------------------------------------------------------


def test_forward_returns_the_value_of_the_batch_and_keeps_the_sum():
    parts = batches(ANSWERS["two targets"], False, (5, 9))
    for make, function in FUNCTIONS.values():
        metric = make()
        for answer, y, _ in parts:
            close(metric(answer, y), function(answer, y))
        p, y, _ = whole(parts)
        close(metric.compute(), function(p, y))


def test_gradients_are_neither_needed_nor_kept():
    head = hs.NIGHead(4)
    for make, _ in FUNCTIONS.values():
        metric = make()
        metric(head(torch.randn(8, 4)), torch.randn(8))
        states = metric.metric_state.values()
        assert not any(t.requires_grad for s in states for t in (s if isinstance(s, list) else [s]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_copies_pickles_and_saved_states_go_on(name, tmp_path):
    make, function = FUNCTIONS[name]
    first, second = batches(ANSWERS["evidential"], False, (6, 5))
    metric = make()
    metric.persistent(True)
    metric.update(*first)
    torch.save(metric.state_dict(), tmp_path / "state.pt")
    loaded = make()
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    loaded._update_count = 1  # torchmetrics warns of a metric that has seen nothing, and does not save whether it has
    p, y, _ = whole([first, second])
    for other in (pickle.loads(pickle.dumps(metric)), metric.clone(), copy.copy(metric), loaded):
        other.update(*second)
        close(other.compute(), function(p, y))
        metric.reset()
        assert metric.count == 0
        metric.update(*first)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_states_merge(name):
    make, function = FUNCTIONS[name]
    parts = batches(ANSWERS["evidential"], True, (6, 5, 9))
    left, right = make(), make()
    left.update(*parts[0])
    for part in parts[1:]:
        right.update(*part)
    left.merge_state(right)
    p, y, mask = whole(parts)
    close(left.compute(), function(p, y, mask=mask))


def test_states_of_other_options_do_not_fit():
    other = streaming.Coverage(0.5)
    other.persistent(True)
    with pytest.raises(RuntimeError, match="inside_0_5"):
        streaming.Coverage(0.9).load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="state"):
        streaming.Coverage(0.9).merge_state(other)
    with pytest.raises(ValueError, match="NLL"):
        streaming.NLL().merge_state(streaming.CRPS())


@pytest.mark.parametrize("change", [torch.nn.Module.half, torch.nn.Module.bfloat16, lambda m: m.to(torch.bfloat16)])
def test_sums_stay_exact_in_a_module_of_half_precision(change):
    module = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 2), "metric": streaming.NLL()})
    answer, y = evidential(9), torch.randn(9)
    module["metric"].update(answer, y)
    change(module)
    assert module["body"].weight.dtype != torch.float32
    close(module["metric"].compute(), metrics.nll(answer, y))
    module["metric"].reset()
    module["metric"].set_dtype(torch.float16)
    module["metric"].update(answer, y)
    close(module["metric"].compute(), metrics.nll(answer, y))


def test_device_without_float64_leaves_sums_where_they_are():
    """Moves as to Apple's mps, which raises for float64."""

    def refuse(t):
        if t.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return t

    metric, answer, y = streaming.Coverage(), evidential(9), torch.randn(9)
    metric.update(answer, y)
    metric._apply(refuse)
    metric.update(answer, y)
    close(metric.compute(), metrics.coverage(answer, y))
    metric._device = torch.device("meta")  # stands for that device: a result goes there in float32
    metric._computed = None
    assert (metric.compute().device.type, metric.compute().dtype) == ("meta", torch.float32)


def test_collections_separate_metrics_with_equal_first_values():
    """After a first batch without targets all sums are 0; torchmetrics takes metrics with equal states for one."""
    together = torchmetrics.MetricCollection({name: make() for name, (make, _) in FUNCTIONS.items()})
    parts = batches(ANSWERS["images"], True, (0, 2, 6, 5))
    for answer, y, mask in parts:
        together.update(answer, y, mask=mask)
    found = together.compute()
    p, y, mask = whole(parts)
    for name, (_, function) in FUNCTIONS.items():
        value = (
            (found["retention_0"], found["retention_1"]) if name == "retention" and name not in found else found[name]
        )
        close(value, function(p, y, mask=mask))


def test_collections_compute_shared_intervals_once():
    together = torchmetrics.MetricCollection(
        [streaming.IntervalScore(), streaming.IntervalWidth(), streaming.Coverage()]
    )
    together.update(evidential(20), torch.randn(20))
    assert sorted(map(len, together.compute_groups.values())) == [1, 2]


def test_summary_is_that_of_the_whole_data():
    together = streaming.summary(0.8, prefix="val_")
    parts = batches(ANSWERS["familiarity"], True)
    for part in parts:
        together.update(*part)
    p, y, mask = whole(parts)
    expected = metrics.summary(p, y, coverage=0.8, mask=mask)
    found = together.compute()
    assert set(found) == {f"val_{name}" for name in expected}
    for name, value in expected.items():
        assert found[f"val_{name}"].item() == pytest.approx(value, rel=1e-12)


def test_targets_learned_by_their_logarithm_have_no_moments():
    answer = hs.Normal(torch.zeros(9), 1.0)
    p, y = hs.Prediction(answer, transform=Transform("log")), torch.rand(9) + 0.1
    together = streaming.summary()
    together.update(p, y)
    found = together.compute()
    for name, value in metrics.summary(p, y).items():
        assert found[name].item() == pytest.approx(value, rel=1e-12, nan_ok=True)
    assert {name for name, value in found.items() if value.isnan()} == {"rmse", "mae", "crps"}


# Processes ------------------------------------------------------------------------------------------------------------


def one_process(rank, folder, scenarios):
    """Score the batches of one rank, and save the results of both ranks together, before and after a further batch."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save([scores_of(parts[rank], parts[2]) for parts in scenarios], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def scores_of(own, further):
    """Return the metrics of all processes together, by name."""
    found = {}
    for name, (make, _) in FUNCTIONS.items():
        metric = make()
        for part in own:
            metric.update(*part)
        if not own:
            metric._update_count = 1  # or torchmetrics warns
        found[name] = metric.compute()
        metric.update(*further[0])  # the sums of this process go on
        found[f"{name} and more"] = metric.compute()
    together = streaming.summary()
    for part in [*own, *further]:
        together.update(*part)
    found["summary"] = together.compute()
    return found


def test_two_processes_give_the_number_of_the_whole_data(tmp_path):
    """With unequal numbers of targets, and with a process that has none: no batch, or only masked ones."""
    scenarios = []
    for idle in (None, 0, 1):
        parts = [batches(ANSWERS["two targets"], True, sizes) for sizes in ((3, 8), (20, 4, 9), (5,))]
        if idle is not None:
            parts[idle] = [] if idle == 0 else [(a, y, mask & False) for a, y, mask in parts[idle]]
        scenarios.append(parts)
    torch.multiprocessing.spawn(one_process, (str(tmp_path), scenarios), nprocs=2)
    for rank in range(2):
        for parts, found in zip(scenarios, torch.load(tmp_path / f"{rank}.pt", weights_only=True), strict=True):
            for suffix, together in (("", parts[0] + parts[1]), (" and more", parts[0] + parts[1] + 2 * parts[2])):
                p, y, mask = whole(together)
                for name, (_, function) in FUNCTIONS.items():
                    close(found[name + suffix], function(p, y, mask=mask))
            for name, value in metrics.summary(p, y, mask=mask).items():
                assert found["summary"][name].item() == pytest.approx(value, rel=1e-9)


# Lightning, and life without torchmetrics -----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
@pytest.mark.filterwarnings("ignore")  # Lightning's about workers, logs and its own imports
def test_lightning_logs_the_number_of_the_whole_data(precision, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.SiLU(), hs.NIGHead(8))
            self.nll, self.rest = streaming.NLL(), streaming.summary(prefix="val_")

        def training_step(self, batch):
            x, y = batch
            return hs.evidential_loss(self.net(x), torch.nan_to_num(y), mask=~y.isnan())

        def validation_step(self, batch):
            x, y = batch
            self.nll.update(self.net(x), y, ~y.isnan())
            self.rest.update(self.net(x), y, mask=~y.isnan())
            self.log("nll", self.nll)
            self.log_dict(self.rest)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    x, y = torch.randn(50, 3), torch.randn(50)
    y[::7] = torch.nan
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, loader, loader)
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    with torch.no_grad():
        answers = [model.net(part.to(dtype)) for part in x.split(16)]
    p = hs.Prediction.cat(map(hs.Prediction, answers))
    expected = metrics.summary(p, y.to(dtype).float(), mask=~y.isnan())
    logged = trainer.callback_metrics
    assert logged["nll"].item() == pytest.approx(expected["nll"], rel=1e-6)
    for name, value in expected.items():
        assert logged[f"val_{name}"].item() == pytest.approx(value, rel=1e-6)


def test_howsure_does_without_torchmetrics():
    code = """
import sys, howsure as hs
from howsure import metrics
assert "torchmetrics" not in sys.modules
sys.modules["torchmetrics"] = None
try:
    metrics.streaming
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "howsure.metrics.streaming needs torchmetrics; "
        'install it with pip install ".[torchmetrics]" in a checkout of howsure\n'
    )


def test_package_has_them_by_attribute():
    assert hs.metrics.streaming.NLL is streaming.NLL
    with pytest.raises(AttributeError, match="'stream'"):
        _ = metrics.stream
