"""Evidence attached to trained networks: formulas, shapes, calibration, files."""

import itertools
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.errors import FewLabelsWarning
from howsure.exporting.modules import ExportedNetwork
from howsure.network import EDGE_QUANTILE, RIDGE, NetworkHeader
from howsure.nn.evidence import PRIOR_VARIANCE, UNIT_FLOOR
from howsure.nn.features import GRADIENT_FEATURES, FeatureReader
from howsure.nn.noise import fit_student, noise_weights
from howsure.storage import load_model, save_model


def rows(count=300, width=3, seed=0, noise=0.1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=g)
    return x, (x[:, :1] ** 2 + x[:, 1:2] + noise * torch.randn(count, 1, generator=g))


def mlp(width=3, outputs=1, seed=0, last=None):
    torch.manual_seed(seed)
    head = nn.Linear(16, outputs) if last is None else last
    return nn.Sequential(nn.Linear(width, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), head)


@pytest.fixture(scope="module")
def trained():
    """A network trained by squared errors, and its model."""
    x, y = rows(600)
    network = mlp()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x[:400]), y[:400]).backward()
        optimizer.step()
    return network, hs.attach(network, [(x[:400], y[:400])], validation=[(x[400:500], y[400:500])])


# Formulas -------------------------------------------------------------------------------------------------------------


def leverage_by_definition(features, at, widths):
    """Return φᵀ(ΦᵀΦ + λI)⁻¹φ with a constant, each unit divided by its deviation with a floor, in NumPy."""
    mean, variance = features.mean(0), features.var(0)
    ends = np.cumsum([0, *widths])
    floors = [np.full(b - a, UNIT_FLOOR * variance[a:b].mean()) for a, b in itertools.pairwise(ends)]
    scale = np.sqrt(variance + np.concatenate(floors))
    z, new = (features - mean) / scale, (at - mean) / scale
    gram = z.T @ z
    ridge = RIDGE * np.trace(gram) / len(gram)
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    return np.einsum("nd,de,ne->n", new, inverse, new) + 1 / (len(z) + ridge)


def test_scale_and_evidence_follow_the_formula(trained):
    network, model = trained
    x, y = rows(600)
    new = 3 * torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = [torch.cat([network[:2](v), network[:4](v)], 1).double().numpy() for v in (x[:400], x[400:500], new)]
        answer, familiarity = model.with_familiarity(new)
        assert torch.equal(answer.gamma, network(new))
    held_out, h = (leverage_by_definition(hidden[0], each, [16, 16]) for each in hidden[1:])
    edge = np.quantile(held_out, EDGE_QUANTILE)
    scale = (
        model.evidence.noise(
            model.reader(network, (new,))[0], torch.from_numpy(np.concatenate([hidden[2]], 1)).float()
        )[0][:, 0]
        .detach()
        .double()
        .numpy()
    )
    typical, prior = float(model.evidence.typical) ** 2, PRIOR_VARIANCE * float(y[400:500].var(correction=0))
    added = typical * np.maximum(h / edge - 1, 0)
    total = scale**2 + added * prior / (prior + added)
    mean = typical * np.minimum(h, edge) + added
    mean = mean * prior / (prior + mean)
    np.testing.assert_allclose(answer.predictive().scale[:, 0].detach() ** 2, total, rtol=2e-3)
    share = (answer.epistemic_variance / answer.predictive_variance)[:, 0].detach()
    np.testing.assert_allclose(share, np.minimum(mean / total, 1 / 1.001), rtol=2e-3)
    np.testing.assert_allclose(familiarity, np.minimum(np.quantile(held_out, 0.5) / h, 1), rtol=2e-3)


def test_noise_of_few_rows_is_the_likeliest_student():
    g = np.random.default_rng(0)
    from scipy import optimize, stats

    r = 0.3 * g.standard_t(4, size=2000)
    scale, df = fit_student(torch.from_numpy(r))

    def loss(p):
        return -stats.t.logpdf(r, math.exp(p[0]), 0, math.exp(p[1])).mean()

    best = optimize.minimize(loss, [1.0, -1.0], method="Nelder-Mead")
    assert loss([math.log(df), math.log(scale)]) <= best.fun + 1e-3  # df is chosen from a grid
    assert float(scale) == pytest.approx(math.exp(best.x[1]), rel=0.1)


def test_noise_that_varies_is_found_and_constant_noise_stays_constant():
    g = torch.Generator().manual_seed(0)
    z, e = torch.randn(2000, 4, generator=g, dtype=torch.float64), torch.randn(2000, generator=g, dtype=torch.float64)
    weights = noise_weights(z, e * (0.7 * z[:, 0]).exp())
    assert weights.numpy() == pytest.approx([0.7, 0, 0, 0], abs=5 / math.sqrt(2000))
    assert not noise_weights(z, e).any()
    assert not noise_weights(z[:100], e[:100]).any()


def test_without_validation_rows_are_left_out_in_closed_form():
    """The leverage of a left-out row is that of a fit without the row, up to the scale of the units."""
    x, y = rows(60)
    network = mlp()
    model = hs.attach(network, [(x, y)])
    with torch.no_grad():
        hidden = torch.cat([network[:2](x), network[:4](x)], 1).double().numpy()
    z = (hidden - hidden.mean(0)) / model.evidence.leverage.scale.double().numpy()
    phi = np.concatenate([z, np.ones((60, 1))], 1)
    ridge = RIDGE * np.trace(z.T @ z) / z.shape[1]
    left_out = []
    for k in range(60):
        rest = np.delete(phi, k, 0)
        left_out.append(phi[k] @ np.linalg.inv(rest.T @ rest + ridge * np.eye(33)) @ phi[k])
    assert np.quantile(left_out, EDGE_QUANTILE) < 9  # the bound of the leverage, 0.9, does not matter here
    assert float(model.evidence.edge) == pytest.approx(np.quantile(left_out, EDGE_QUANTILE), rel=1e-3)


def test_intervals_widen_away_from_the_training_rows(trained):
    _, model = trained
    near, far = model.predict(torch.zeros(1, 3)), model.predict(torch.full((1, 3), 8.0))
    assert far.epistemic_std[0, 0] > 5 * near.epistemic_std[0, 0]
    assert far.familiarity[0] < 0.1 < near.familiarity[0]
    beyond = model.predict(torch.full((1, 3), 1e6))
    assert np.isfinite(beyond.std).all()


def test_gradient_features_are_directional_derivatives():
    network = mlp().double()
    x = rows(4)[0].double()
    reader = FeatureReader.find(network, (x,), None, gradients=True)
    features = reader(network, (x,))[1][0]
    assert features.shape == (4, GRADIENT_FEATURES)
    jacobian = []
    for k in range(4):
        network.zero_grad()
        network(x[k : k + 1]).sum().backward()
        jacobian.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    gram = torch.stack(jacobian) @ torch.stack(jacobian).T
    # a random projection keeps inner products on average; the error of 256 directions is about 1/16
    norms = gram.diagonal().sqrt()
    error = (features @ features.T / GRADIENT_FEATURES - gram) / norms / norms.unsqueeze(1)
    assert float(error.abs().max()) < 5 * math.sqrt(2 / GRADIENT_FEATURES)


# Networks and shapes --------------------------------------------------------------------------------------------------


class Graph(nn.Module):
    """Two rounds of messages along the edges of a graph."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x, edges):
        for layer in (self.first, self.second):
            x = torch.tanh(layer(x))
            x = x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.last(x)


class Tokens(nn.Module):
    """A network of sequences with a linear head for every position."""

    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Pooled(Tokens):
    """The same with one prediction for each sequence."""

    def forward(self, x):
        return super().forward(x).mean(1)[:, 0]


CASES = {
    "rows": (mlp(), (torch.randn(40, 3),), (40, 1)),
    "rows without a target dimension": (
        nn.Sequential(mlp(), nn.Flatten(0)),
        (torch.randn(40, 3),),
        (40,),
    ),
    "several targets": (mlp(outputs=4), (torch.randn(40, 3),), (40, 4)),
    "one layer": (nn.Linear(3, 2), (torch.randn(40, 3),), (40, 2)),
    "evidential": (mlp(last=hs.NIGHead(16)), (torch.randn(40, 3),), (40,)),
    "normal": (mlp(last=hs.NormalHead(16, targets=2)), (torch.randn(40, 3),), (40, 2)),
    "sequences": (Tokens(), (torch.randn(10, 6, 8),), (10, 6, 3)),
    "pooled sequences": (Pooled(), (torch.randn(20, 6, 8),), (20,)),
    "maps": (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)),
        (torch.randn(5, 3, 8, 6),),
        (5, 2, 8, 6),
    ),
    "evidential maps": (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), hs.nn.NIGConv2d(8)),
        (torch.randn(5, 3, 8, 6),),
        (5, 8, 6),
    ),
    "signals": (nn.Sequential(nn.Conv1d(2, 8, 3), nn.Tanh(), nn.Conv1d(8, 3, 1)), (torch.randn(7, 2, 9),), (7, 3, 7)),
    "images to rows": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
        (torch.randn(30, 3, 8, 8),),
        (30, 2),
    ),
    "nodes of a graph": (Graph(), (torch.randn(50, 3), torch.randint(0, 50, (2, 120))), (50, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_shapes_of_networks(name):
    network, inputs, shape = CASES[name]
    y = torch.randn(shape)
    model = hs.attach(network, [(*inputs, y)])
    answer, familiarity = model.with_familiarity(*inputs)
    assert answer.batch_shape == shape
    means = network(*inputs)
    assert torch.equal(
        answer.gamma,
        means
        if isinstance(means, torch.Tensor)
        else means.mean
        if not isinstance(means, hs.NormalInverseGamma)
        else means.gamma,
    )
    assert bool((familiarity > 0).all() & (familiarity <= 1).all())
    p = model.predict(*inputs)
    assert p.shape == shape
    assert np.isfinite(p.std).all()
    assert (p.epistemic_std > 0).all()


def test_layers_by_name_may_have_another_size():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 4, 1),
        nn.ReLU(),
        nn.Conv2d(4, 1, 1),
    )
    x, y = torch.randn(6, 3, 8, 8), torch.randn(6, 1, 8, 8)
    model = hs.attach(network, [(x, y)], layers=["0", "3"])
    assert model.evidence.leverage.offset.shape == (12,)
    assert model.predict(x).shape == (6, 1, 8, 8)


def test_batches_give_the_same_model_as_one_batch():
    x, y = rows(300)
    network = mlp()
    whole = hs.attach(network, [(x, y)])
    parts = hs.attach(network, ((x[k : k + 70], y[k : k + 70]) for k in range(0, 300, 70)))
    for name, value in whole.evidence.state_dict().items():
        if name not in ("leverage.directions",):  # of any sign
            torch.testing.assert_close(parts.evidence.state_dict()[name], value, rtol=1e-3, atol=1e-6)


def test_missing_targets_do_not_count():
    x, y = rows(300)
    network = mlp(outputs=2)
    both = torch.cat([y, 2 * y], 1)
    both[100:, 1] = torch.nan
    both[200:] = torch.nan
    model = hs.attach(network, [(x, both)])
    fewer = hs.attach(network, [(x[:200], both[:200])])
    new = torch.randn(20, 3)
    np.testing.assert_allclose(model.predict(new).std, fewer.predict(new).std, rtol=1e-4)


def test_silent_units_do_not_make_intervals_explode():
    network = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        network[0].bias[:8] = -30.0  # silent for all training rows
    g = torch.Generator().manual_seed(0)
    x = torch.rand(400, 2, generator=g)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=g)
    p = hs.attach(network, [(x, y)]).predict(100 * torch.randn(200, 2, generator=g))
    width = np.diff(p.interval(0.9), axis=-1)
    assert width.max() < 2 * 3 * math.sqrt(PRIOR_VARIANCE + 1) * float(y.std() + 1)


def test_bfloat16_and_float64_networks():
    x, y = rows(300)
    single = hs.attach(mlp(), [(x, y)]).predict(x[:50])
    for dtype, tolerance in ((torch.float64, 1e-4), (torch.bfloat16, 0.2)):
        model = hs.attach(mlp().to(dtype), [(x.to(dtype), y)])
        p = model.predict(x[:50].to(dtype))
        np.testing.assert_allclose(p.std.astype(float), single.std, rtol=tolerance)


def test_network_stays_as_it_is():
    x, y = rows(100)
    network = mlp()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    hs.attach(network, [(x, y)]).predict(x)
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert all(p.requires_grad for p in network.parameters())


def test_gradients_reach_the_inputs(trained):
    _, model = trained
    x = torch.randn(5, 3, requires_grad=True)
    model(x).std.sum().backward()
    assert bool(x.grad.isfinite().all() & (x.grad != 0).any())


@pytest.mark.parametrize(
    ("batches", "options"),
    [
        ([], {}),
        ([torch.zeros(5, 3)], {}),
        ([(torch.zeros(5, 3), [1, 2, 3, 4, 5])], {}),
        ([{"x": torch.zeros(5, 3)}], {}),
        ([(torch.zeros(5, 3), torch.zeros(4, 1))], {}),
        ([(torch.zeros(5, 3), torch.full((5, 1), torch.nan))], {}),
        ([(torch.zeros(5, 3), torch.full((5, 1), torch.inf))], {}),
        ([(torch.zeros(5, 3), torch.zeros(5, 1))], {}),
        ([(torch.full((5, 3), torch.nan), torch.randn(5, 1))], {}),
        ([(torch.zeros(1, 3), torch.ones(1, 1))], {}),
        ([(torch.randn(5, 3), torch.randn(5, 1))], {"layers": ["nowhere"]}),
        ([(torch.randn(5, 3), torch.randn(5, 1))], {"layers": "0"}),
        ([(torch.randn(5, 3), torch.randn(5, 1))], {"features": "weights"}),
        ([(torch.randn(5, 3), torch.randn(5, 1))], {"features": "gradients", "layers": ["0"]}),
    ],
)
def test_wrong_arguments_raise(batches, options):
    with pytest.raises((hs.InputError, hs.InputTypeError)):
        hs.attach(mlp(), batches, **options)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_not_finite_raise_with_batch_and_row(trained, value):
    x, y = rows(60)
    x[47, 1] = value
    batches = [(x[:40], y[:40]), (x[40:], y[40:])]
    network, model = mlp(last=nn.Linear(16, 1)), trained[1]
    for use in (lambda: hs.attach(network, batches), lambda: hs.calibrate(model, batches)):
        with pytest.raises(hs.InputError, match="batch 1") as caught:
            use()
        assert caught.value.row == 7
        assert "leave out" in caught.value.hint
    y[47] = math.nan
    if math.isnan(value):  # a row without targets does not count
        hs.attach(network, batches)


def test_network_that_returns_nan_raises():
    x, y = rows(20)
    network = mlp()
    network[-1].bias.data[:] = math.nan
    with pytest.raises(hs.InputError, match="returns NaN") as caught:
        hs.attach(network, [(x, y)])
    assert caught.value.row == 0


def test_inputs_that_the_network_replaces_may_be_missing():
    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x):
            return self.body(x.nan_to_num())

    x, y = rows(100)
    x[3] = math.nan
    assert np.isfinite(hs.attach(Filled(), [(x, y)]).predict(x).std).all()


@pytest.mark.parametrize("method", [None, "scale", "isotonic", "conformal"])
def test_prediction_of_a_loader_is_the_one_of_its_rows(trained, method):
    x, y = rows(90, seed=8)
    model = trained[1] if method is None else hs.calibrate(trained[1], [(x, y)], method=method)
    whole = model.predict(x)
    for columns in ((x, y), (x,)):
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*columns), batch_size=40)
        np.testing.assert_allclose(model.predict(loader).interval(0.9), whole.interval(0.9), rtol=1e-5)
    bare = torch.utils.data.DataLoader(x, batch_size=40)
    np.testing.assert_allclose(model.predict(bare).interval(0.9), whole.interval(0.9), rtol=1e-5)
    with pytest.raises(hs.InputError, match="no batches"):
        model.predict(torch.utils.data.DataLoader(x[:0]))


def test_whole_numbers_and_float64_are_converted(trained):
    whole = torch.tensor([[0, 1, 2], [3, -1, 0]])
    expected = trained[1].predict(whole.float()).std
    for x in (whole, whole.tolist(), whole.numpy(), whole.double(), whole.to(torch.int8)):
        np.testing.assert_array_equal(trained[1].predict(x).std, expected)
    x, y = (10 * torch.randn(50, 3)).round().long(), torch.randn(50, 1)
    assert np.isfinite(hs.attach(mlp(), [(x, y)]).predict(x).std).all()


def test_positions_of_an_embedding_stay_whole_numbers():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(5, 8), nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randint(5, (80, 2))
    model = hs.attach(network, [(x, torch.randn(80, 1))])
    assert model.predict(x.tolist()).shape == (80, 1)


def test_wrong_outputs_raise():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    x = torch.randn(5, 3)
    with pytest.raises(hs.InputTypeError):
        hs.attach(Pair(), [(x, x)])
    with pytest.raises(hs.InputTypeError):
        hs.attach(lambda x: x, [(x, x)])
    with pytest.raises(hs.InputError):
        hs.attach(nn.Tanh(), [(x, x)])


# Calibration ----------------------------------------------------------------------------------------------------------


def test_calibrated_intervals_have_their_coverage(trained):
    network, model = trained
    x, y = rows(4000, seed=5)
    for method in ("scale", "isotonic", "conformal"):
        calibrated = hs.calibrate(model, [(x[:500], y[:500]), (x[500:1000], y[500:1000])], method=method)
        held = calibrated.predict(x[1000:]).interval(0.9)
        inside = ((y[1000:].numpy() >= held[..., 0]) & (y[1000:].numpy() <= held[..., 1])).mean()
        assert abs(inside - 0.9) < 5 * math.sqrt(0.09 * (1 / 3000 + 1 / 1000)), method
        assert calibrated.network is network
    assert model.calibration is None


def test_calibration_of_a_calibrated_model_starts_anew(trained):
    _, model = trained
    x, y = rows(200, seed=6)
    once = hs.calibrate(model, [(x, y)])
    twice = hs.calibrate(once, [(x, y)])
    assert twice.calibration.factors == pytest.approx(once.calibration.factors)
    np.testing.assert_allclose(once.predict(x).std, once.calibration.factors[0] * model.predict(x).std, rtol=1e-5)


def test_conformal_groups_are_columns_of_the_input(trained):
    _, model = trained
    x, y = rows(400, seed=7)
    x[:, 2] = (torch.arange(400) % 2).float()
    y = y + 3 * x[:, 2:] * torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    grouped = hs.calibrate(model, [(x, y)], method="conformal", groups=2)
    held = grouped.predict(x).interval(0.9)[:, 0]
    inside = (y[:, 0].numpy() >= held[:, 0]) & (y[:, 0].numpy() <= held[:, 1])
    for k in range(2):
        assert 0.9 <= inside[k::2].mean() <= 0.92


@pytest.mark.parametrize("arguments", [("other", None), ("scale", 0), ("isotonic", [0])])
def test_calibrated_checks_its_method_and_groups(trained, arguments):
    with pytest.raises(hs.InputError):
        trained[1].calibrated([rows(40)], *arguments)


def test_calibration_of_a_plain_network_points_to_attach():
    with pytest.raises(hs.InputTypeError, match="attach"):
        hs.calibrate(mlp(), [rows(20)])


def test_few_labels_warn_and_wrong_arguments_raise(trained):
    _, model = trained
    x, y = rows(5)
    with pytest.warns(FewLabelsWarning):
        hs.calibrate(model, [(x, y)])
    for arguments in ((), ([(x, y)], y)):
        with pytest.raises(hs.InputTypeError):
            hs.calibrate(model, *arguments)
    with pytest.raises(hs.InputError):
        hs.calibrate(model, [(x, y)], groups=0)
    with pytest.raises(hs.InputError):
        hs.calibrate(model, [])


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "scale", "isotonic", "conformal"])
def test_saved_model_predicts_the_same(trained, tmp_path, method):
    network, model = trained
    x, y = rows(200, seed=8)
    if method:
        model = hs.calibrate(model, [(x, y)], method=method)
    model.save(tmp_path / "net.safetensors")
    again = hs.load(tmp_path / "net.safetensors", network)
    np.testing.assert_array_equal(again.predict(x).interval(0.8), model.predict(x).interval(0.8))
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


def test_file_of_another_network_raises(trained, tmp_path):
    network, model = trained
    model.save(tmp_path / "net.safetensors")
    other = mlp()
    with pytest.raises(hs.InputError):
        hs.load(tmp_path / "net.safetensors", other)
    other.load_state_dict(network.state_dict())
    hs.load(tmp_path / "net.safetensors", other)


def test_files_that_are_not_models_raise(trained, tmp_path):
    network, model = trained
    model.save(tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    for content in (b"", data[:100], data[:-10], os.urandom(500), b"{}"):
        (tmp_path / "forged").write_bytes(content)
        with pytest.raises(hs.InputError):
            hs.load(tmp_path / "forged", network)
    tensors, values = load_model(tmp_path / "net.safetensors")
    header = NetworkHeader(**{name: value for name, value in values.items() if name != "format"})
    reader = values["reader"]
    changes = [
        {"reader": {**reader, name: value}} for name, value in (("layers", [1]), ("layers", ["9"]), ("target_dim", 7))
    ]
    for change in (*changes, {"calibration": {"method": "scale"}}):
        save_model(tmp_path / "forged", tensors, replace(header, **change), overwrite=True)
        with pytest.raises(hs.InputError):
            hs.load(tmp_path / "forged", network)
    with pytest.raises(hs.InputError):
        hs.load(tmp_path / "missing", network)
    with pytest.raises(hs.InputError):
        hs.load(tmp_path / "net.safetensors")


# Export ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "scale", "conformal"])
def test_exported_outputs_are_those_of_predict(trained, tmp_path, method):
    _, model = trained
    x, y = rows(200, seed=9)
    if method:
        model = hs.calibrate(model, [(x, y)], method=method)
    p, found = model.predict(3 * x), ExportedNetwork(model, coverage=0.8)(3 * x)
    ends = p.interval(0.8)
    expected = {
        "mean": p.mean,
        "std": p.std,
        "aleatoric_std": p.aleatoric_std,
        "epistemic_std": p.epistemic_std,
        "lower": ends[..., 0],
        "upper": ends[..., 1],
        "familiarity": p.familiarity,
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    plain = ExportedNetwork(model, coverage=None)(3 * x)
    assert all(torch.equal(plain[name], found[name]) for name in set(expected) - {"lower", "upper"})
    if method == "scale":
        hs.export(model, tmp_path / "net.pt2", x[:2])
        program = torch.export.load(tmp_path / "net.pt2").module()
        for name, value in program(3 * x).items():
            torch.testing.assert_close(
                value, found[name] if name not in ("lower", "upper") else ExportedNetwork(model)(3 * x)[name]
            )
        assert {tuple(value.shape) for value in program(x[:0]).values()} == {(0, 1), (0,)}


def test_models_that_cannot_be_exported_raise(trained, tmp_path):
    network, model = trained
    x, y = rows(200, seed=9)
    isotonic = hs.calibrate(model, [(x, y)], method="isotonic")
    groups = hs.calibrate(model, [((x > 0).float(), y)], method="conformal", groups=0)
    gradients = hs.attach(network, [(x, y)], features="gradients")
    for each in (isotonic, groups, gradients):
        with pytest.raises(hs.InputError):
            hs.export(each, tmp_path / "net.pt2", x)
    assert not list(tmp_path.iterdir())


@pytest.mark.extras
@torch.no_grad()
def test_onnx_of_maps_with_evidence(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    network, (x,), shape = CASES["maps"]
    model = hs.attach(network, [(x, torch.randn(shape))])
    hs.export(model, tmp_path / "net.onnx", x, dynamic=(0, 2, 3))
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    new = 3 * torch.randn(3, 3, 12, 10)
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": new.numpy()}), strict=True))
    for name, value in ExportedNetwork(model)(new).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


# Several processes ----------------------------------------------------------------------------------------------------


def attach_a_part(rank, folder):
    """Attach in one of two processes, each of which has another part of the rows."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=2)
    x, y = rows(300)
    own = slice(0, 120) if rank == 0 else slice(120, 300)
    model = hs.attach(mlp(), [(x[own], y[own])])
    torch.save(model.evidence.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.extras
def test_two_processes_give_the_model_of_one(tmp_path):
    torch.multiprocessing.spawn(attach_a_part, (str(tmp_path),), nprocs=2)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    x, y = rows(300)
    alone = hs.attach(mlp(), [(x, y)])
    new = torch.randn(50, 3)
    expected = alone.predict(new).std
    for state in both:
        alone.evidence.load_state_dict(state)
        np.testing.assert_allclose(alone.predict(new).std, expected, rtol=1e-3)
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])


@pytest.mark.parametrize("name", ["sequences", "maps", "several targets", "pooled sequences"])
def test_scale_of_every_target_is_calibrated(name):
    network, inputs, shape = CASES[name]
    g = torch.Generator().manual_seed(0)
    model = hs.attach(network, [(*inputs, torch.randn(shape, generator=g))])
    targets = {3: -1, 4: 1, 2: 1}.get(len(shape))
    count = 1 if targets is None else shape[targets]
    spread = torch.arange(1.0, count + 1)
    y = torch.randn(shape, generator=g)
    if targets is not None:
        y = (y.movedim(targets, -1) * spread).movedim(-1, targets)
    calibrated = hs.calibrate(model, [(*inputs, y)])
    assert len(calibrated.calibration.factors) == count
    before, after = model.predict(*inputs), calibrated.predict(*inputs)
    factors = calibrated.calibration.factors
    ratio = np.moveaxis(after.std / before.std, targets, -1) if targets is not None else after.std / before.std
    np.testing.assert_allclose(ratio, np.broadcast_to(factors, ratio.shape), rtol=1e-4)
    if count > 1:
        assert factors[-1] > factors[0]
