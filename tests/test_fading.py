import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.stats import norm
from sklearn.base import clone
from sklearn.covariance import LedoitWolf
from sklearn.model_selection import cross_val_score

import howsure as hs
from howsure.errors import InputError
from howsure.fitting import Fitted, hold_out
from howsure.fitting import fading as fitting
from howsure.fitting.fading import POWERS, best_power, choose_power, extrapolation_folds, with_fading
from howsure.methods import Evidential
from howsure.nn import FadingEvidence
from howsure.persistence import load_model, save_model

QUICK = {"members": 2, "hidden": (16,), "steps": 20, "random_state": 0, "device": "cpu"}
LEAST = 1e-12


# The module -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def features():
    return torch.randn(80, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64) + 3


@pytest.fixture
def others():
    return 5 * torch.randn(40, 6, dtype=torch.float64)


def by_scipy(x, train, rank=None, ridge=0.01, covariance=None):
    """Distances with a dense inverse: variances along the first directions, and one for all others."""
    if covariance is None:
        covariance = np.cov(train.numpy(), rowvar=False, bias=True)
        covariance = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    values, vectors = np.linalg.eigh(covariance)
    if rank is not None and rank < len(values):
        values[:-rank] = values[:-rank].mean()
    inverse = vectors @ np.diag(1 / values) @ vectors.T
    return np.array([mahalanobis(row, train.numpy().mean(0), inverse) for row in x.numpy()])


@pytest.mark.parametrize("rank", [None, 1, 3, 5, 6, 32])
@pytest.mark.parametrize("ridge", [0.0, 0.01, 1.0])
def test_distances_against_scipy(features, others, rank, ridge):
    fading = FadingEvidence.fit(features, rank=rank, ridge=ridge)
    expected = by_scipy(others, features, rank, ridge)
    np.testing.assert_allclose(fading.distance(others), expected, rtol=1e-7)


@pytest.mark.parametrize("rank", [None, 2])
def test_without_a_ridge_the_covariance_is_ledoit_and_wolfs(features, others, rank):
    fading = FadingEvidence.fit(features, rank=rank, ridge=None)
    expected = by_scipy(others, features, rank, covariance=LedoitWolf().fit(features.numpy()).covariance_)
    np.testing.assert_allclose(fading.distance(others), expected, rtol=1e-7)


@pytest.mark.parametrize(("power", "quantile"), [(2.0, 0.9), (0.5, 0.5), (7.0, 1.0)])
def test_the_share_against_its_formula(features, others, power, quantile):
    validation = features[:50] + 0.1
    fading = FadingEvidence.fit(features[50:], validation, power=power, quantile=quantile)
    reach = np.quantile(by_scipy(validation, features[50:]), quantile, method="inverted_cdf")
    expected = np.minimum(1, (reach / by_scipy(others, features[50:])) ** power)
    np.testing.assert_allclose(fading(others), expected, rtol=1e-6)
    assert (fading(validation) == 1).double().mean() == quantile


def test_a_power_of_zero_keeps_everything_and_one_network_can_be_told_from_another(features, others):
    assert (FadingEvidence.fit(features, power=0.0)(others) == 1).all()
    two = torch.stack([features, 3 * features + 1])
    both = FadingEvidence.fit(two, two[:, :20], power=[1.0, 3.0], rank=2)
    asked = torch.stack([others, others])
    for k, power in enumerate([1.0, 3.0]):
        one = FadingEvidence.fit(two[k], two[k, :20], power=power, rank=2)
        torch.testing.assert_close(both(asked)[k], one(others))
        torch.testing.assert_close(both.select([k])(asked[:1])[0], one(others))
    assert torch.equal(both.select([1, 0, 1])(asked[:1].expand(3, -1, -1))[0], both(asked)[1])


def test_batches_say_the_same_as_one_tensor(features, others):
    train = features + 1e6  # sums of squares alone would have no digits left
    whole = FadingEvidence.fit(train, train[:30], rank=3)
    parts = FadingEvidence.fit(iter(train.split(7)), (b for b in [train[:0], train[:1], train[1:30]]), rank=3)
    torch.testing.assert_close(parts(others + 1e6), whole(others + 1e6), rtol=1e-4, atol=0)
    again = FadingEvidence.fit(list(train.split(7)), rank=3)
    torch.testing.assert_close(again(others + 1e6), FadingEvidence.fit(train, rank=3)(others + 1e6), rtol=1e-4, atol=0)


def test_a_state_is_all_there_is(features, others):
    fading = FadingEvidence.fit(features, power=3.0, rank=2)
    assert not list(fading.parameters())
    empty = FadingEvidence(6, rank=2)
    assert empty(others).isnan().all()  # and not the share of something never fitted
    empty.load_state_dict(fading.state_dict())
    assert torch.equal(empty(others), fading(others))
    assert repr(empty) == "FadingEvidence(features=6, rank=2)"
    empty.set_power(0.0)
    assert (empty(others) == 1).all()


@pytest.mark.parametrize("rank", [None, 2])
def test_shapes_dtypes_and_far_features(features, others, rank):
    fading = FadingEvidence.fit(features, rank=rank)
    expected = fading(others)
    assert fading(others[0]).shape == ()
    assert fading(others[:0]).shape == (0,)
    assert torch.equal(fading(others.view(4, 10, 6)).flatten(), expected)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 1e-2)):
        share = fading(others.to(dtype))
        assert share.dtype == torch.float32
        torch.testing.assert_close(share.double(), expected, rtol=tolerance, atol=0)
    far = torch.tensor([1.0, -1, 1, -1, 1, 1])
    assert fading(far.double() * 1e300).item() == LEAST
    fading.float()
    torch.testing.assert_close(fading(others.float()).double(), expected, rtol=1e-3, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(fading(others.float()).double(), expected, rtol=1e-3, atol=0)
    assert all(fading(far * size).item() == pytest.approx(LEAST) for size in (1e15, 1e30, 3e38))
    assert fading(far * torch.nan).isnan()


def test_the_share_is_traced_and_has_a_gradient(features, others):
    fading = FadingEvidence.fit(features, rank=3)
    x = torch.cat([others, fading.mean[None]]).requires_grad_()
    compiled = torch.compile(fading, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), fading(x))
    rows = torch.export.Dim("rows")
    program = torch.export.export(fading, (others,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(program.module()(others[:7]), fading(others[:7]))
    fading(x).sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[-1].abs().max() == 0
    assert torch.autograd.gradcheck(fading, others[:5].clone().requires_grad_())
    with torch.inference_mode():
        inside = FadingEvidence.fit(features, rank=3)
    inside.set_power(2.0)  # writes to its buffers
    assert torch.equal(inside(others), fading(others).detach())


def test_features_that_do_not_vary():
    constant = FadingEvidence.fit(torch.ones(10, 3))
    assert (constant(torch.randn(5, 3)) == 1).all()  # they tell nothing
    train = torch.randn(100, 3)
    train[:, 1] = 0.1
    some = FadingEvidence.fit(train)
    assert (some(train) == 1).float().mean() > 0.8
    assert some(torch.tensor([0.0, 9.1, 0.0])) < 0.01
    assert FadingEvidence.fit(torch.randn(2, 50))(torch.full((50,), 99.0)) < 0.01


def test_bad_input_is_named(features):
    bad = features.clone()
    bad[[7, 9], 2] = torch.nan
    for given in (bad, [features, bad]):
        with pytest.raises(hs.InputError, match="finite: 2 of 80 rows have NaN or infinite values, the first is row 7"):
            FadingEvidence.fit(given)
    with pytest.raises(hs.InputError, match="finite: 2 of 80"):
        FadingEvidence.fit(features, bad)
    for few in (features[:1], features[:0], []):
        with pytest.raises(hs.InputError, match="at least 2 training rows, got"):
            FadingEvidence.fit(few)
    for none in (features[:0], []):
        with pytest.raises(hs.InputError, match="there are no validation features"):
            FadingEvidence.fit(features, none)
    for wrong in (features[0], features[None, None]):
        with pytest.raises(hs.InputError, match=r"features have the shape \(N, D\), or \(M, N, D\)"):
            FadingEvidence.fit(wrong)
    with pytest.raises(hs.InputError, match=r"features of size 6 in the last dimension, got shape \(80, 4\)"):
        FadingEvidence.fit(features, features[:, :4])
    with pytest.raises(hs.InputError, match=r"may differ in their rows only|differ in more than rows"):
        FadingEvidence.fit([features, features[:, :4]])
    with pytest.raises(hs.InputError, match=r"features of shape \(2, N, 6\), got \(80, 6\)"):
        FadingEvidence.fit(torch.stack([features] * 2))(features)
    with pytest.raises(hs.InputError, match="covariance is not finite; scale them first"):
        FadingEvidence.fit(features * 1e200)
    for wrong in (features.numpy(), features.long(), [1.0, 2.0]):
        with pytest.raises(hs.InputTypeError, match="features are floating-point tensors, got"):
            FadingEvidence.fit(wrong)
    with pytest.raises(hs.InputTypeError, match="read twice: pass a list"):
        FadingEvidence.fit(iter([features]))
    with pytest.raises(hs.InputTypeError, match="ridge=None needs all training features of one network"):
        FadingEvidence.fit([features], ridge=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantile": 0.0}, "quantile is a share"),
        ({"quantile": 1.1}, "quantile is a share"),
        ({"quantile": torch.nan}, "quantile is a share"),
        ({"power": -1.0}, "power must be a number of at least 0"),
        ({"power": torch.nan}, "power must be a number of at least 0"),
        ({"power": [1.0, 2.0]}, "power must be a number of at least 0, or one for each"),
        ({"power": "two"}, "power must be a number, or one for each"),
        ({"ridge": -0.1}, "ridge is a share of the mean variance"),
        ({"ridge": torch.inf}, "ridge is a share of the mean variance"),
        ({"rank": 0}, "rank must be at least 1"),
    ],
)
def test_bad_settings_are_named(features, options, message):
    with pytest.raises((hs.InputError, hs.InputTypeError), match=message):
        FadingEvidence.fit(features, **options)


# Folds and powers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [50, 51, 333])
@pytest.mark.parametrize("columns", [1, 2, 11])
def test_folds_leave_out_both_ends(rows, columns):
    x = np.random.default_rng(0).normal(size=(rows + 20, columns))
    own = np.arange(rows) + 10
    folds = extrapolation_folds(x, own, seed=3)
    assert len(folds) == (1 if columns == 1 else 8)
    for inner, ends in folds:
        assert len(inner) + len(ends) == rows
        assert sorted([*inner, *ends]) == own.tolist()
        assert len(ends) == 2 * round(rows / 6)
    along = 0
    for column in x.T:
        for inner, ends in folds:
            low, high = np.split(column[ends], 2)
            along += bool(low.max() <= column[inner].min() and column[inner].max() <= high.min())
    assert along == (1 if columns == 1 else min(4, columns))
    again = extrapolation_folds(x, own, seed=3)
    assert all(
        np.array_equal(a, b) for one, other in zip(folds, again, strict=True) for a, b in zip(one, other, strict=True)
    )
    if columns > 1:
        assert any(not np.array_equal(a[1], b[1]) for a, b in zip(folds, extrapolation_folds(x, own, 4), strict=True))


def test_folds_of_odd_tables():
    g = np.random.default_rng(0)
    ties = np.repeat([0.0, 1.0], [90, 10])[:, None]
    ((inner, ends),) = extrapolation_folds(ties, np.arange(100), 0)
    assert set(ends[:17]) <= set(range(90))
    assert set(ends[17:]) >= set(range(90, 100))
    assert np.ptp(ends[:17]) > 17  # of equal rows some, not the first ones
    assert set(inner).isdisjoint(ends)
    assert extrapolation_folds(np.ones((60, 3)), np.arange(60), 0) == []
    with_constant = np.column_stack([np.ones(60), g.normal(size=60)])
    assert len(extrapolation_folds(with_constant, np.arange(60), 0)) == 1
    large = extrapolation_folds(g.normal(size=(100_000, 3)), np.arange(100_000), 0)
    assert all(len(inner) + len(ends) == 2000 for inner, ends in large)
    assert all(len(set(inner) | set(ends)) == 2000 for inner, ends in large)
    assert max(inner.max() for inner, _ in large) > 90_000


def test_the_power_is_the_largest_of_those_that_are_about_as_good():
    g = torch.Generator().manual_seed(0)
    powers, distance = torch.tensor(POWERS).double(), torch.rand(900, generator=g, dtype=torch.float64)
    far = distance > 2 / 3
    shape = (powers[:, None] - 3).square() * torch.ones(900)
    near_prefers_none = powers[:, None] * torch.ones(900)
    nll = torch.where(far, shape, near_prefers_none)
    assert best_power(distance, nll) == 3.0
    # each row differs by noise of size 1: at 300 rows one standard error is 0.06, and (4 − 3)² / 50 is less
    noise = torch.randn(900, generator=g, dtype=torch.float64)
    noise -= noise[far].mean()
    close = (powers[:, None] - 3).square() / 50 + noise * (powers[:, None] - 3).abs()
    chosen = best_power(distance, close)
    assert 3.0 < chosen < 6.0
    assert best_power(distance, torch.zeros(len(POWERS), 900)) == POWERS[-1]
    # rows that keep all evidence by every power say nothing about it
    assert best_power(torch.zeros(900), torch.zeros(len(POWERS), 900)) == fitting.USUAL_POWER
    broken = shape.clone()
    broken[POWERS.index(3.0)] = torch.nan
    assert best_power(distance, broken) in (2.5, 3.5)
    assert best_power(distance, torch.full((len(POWERS), 900), torch.inf)) == fitting.USUAL_POWER


def power_of(y, x):
    method = Evidential(0.01)
    recipe = method.recipe(200)
    recipe = fitting.replace(
        recipe,
        network=fitting.replace(recipe.network, hidden=(32, 32)),
        settings=fitting.replace(recipe.settings, steps=200, evaluate_every=10),
    )
    return choose_power(method, x, y, np.arange(len(y)), 0, recipe=recipe, device="cpu")


def test_the_power_is_larger_where_extrapolation_fails():
    g = np.random.default_rng(0)
    x = g.uniform(-3, 3, (200, 1))
    linear = 2 * x[:, 0] + g.normal(0, 0.5, 200)
    bent = np.where(np.abs(x) > 2, 20 * (np.abs(x) - 2) ** 2, 0).sum(1) + g.normal(0, 0.05, 200)
    assert power_of(bent, x) > power_of(linear, x)


def test_few_rows_have_the_usual_power():
    x = np.random.default_rng(0).normal(size=(60, 2))
    recipe = Evidential(0.01).recipe(60)
    for rows, share in ((49, 0.1), (60, 0.0)):
        power = choose_power(
            Evidential(0.01), x, x[:, 0], np.arange(rows), 0, recipe=recipe, validation_fraction=share, device="cpu"
        )
        assert power == fitting.USUAL_POWER


# Regressors -----------------------------------------------------------------------------------------------------------


def table(rows=120, columns=3, seed=0):
    g = np.random.default_rng(seed)
    x = g.normal(size=(rows, columns))
    return x, x.sum(1) + g.normal(0, 0.3, rows)


@pytest.fixture(scope="module")
def fitted():
    return hs.EvidentialRegressor(**{**QUICK, "steps": 150, "members": 3}).fit(*table(300))


@pytest.fixture(scope="module")
def plain():
    return hs.EvidentialRegressor(**{**QUICK, "steps": 150, "members": 3}, evidence="plain").fit(*table(300))


def directions(columns=3, count=12):
    d = np.random.default_rng(5).normal(size=(count, columns))
    return d / np.linalg.norm(d, axis=1, keepdims=True)


def test_training_rows_are_familiar_and_others_are_not(fitted):
    x, _ = table(300)
    near = fitted.predict_distribution(x).familiarity
    far = fitted.predict_distribution(30 * directions()).familiarity
    assert (near == 1).mean() > 0.7
    assert np.median(near) == 1
    assert fitted.fading_power_ in POWERS
    assert fitted.fading_power_ > 0
    assert far.max() < 0.5
    assert far.min() > 0


def test_intervals_widen_away_from_the_data(fitted):
    for direction in directions(count=6):
        p = fitted.predict_distribution(np.geomspace(3, 1e4, 40)[:, None] * direction)
        scale = p.plain_answers.predictive().scale.numpy()
        each = p.answers.predictive()
        width = (each.icdf(torch.tensor(0.95)) - each.icdf(torch.tensor(0.05))).numpy() / scale
        assert (np.diff(width, axis=1) > -1e-6 * width[:, 1:]).all()  # by fading alone
        assert (np.diff(p.familiarity) <= 1e-9).all()
        assert (p.interval(0.9)[:, 1] - p.interval(0.9)[:, 0])[-1] > 2 * np.ptp(p.interval(0.9)[0])


def test_networks_are_those_of_the_plain_model(fitted, plain):
    x = 3 * table(50, seed=1)[0]
    a, b = fitted.predict_distribution(x), plain.predict_distribution(x)
    assert np.array_equal(a.mean, b.mean)
    for name in a.plain_answers.leaves:
        assert torch.equal(getattr(a.plain_answers, name), getattr(b.answers, name))
    assert b.familiarity is None
    assert plain.fading_power_ is None
    assert (a.std >= b.std * (1 - 1e-9)).all()
    assert a.std.mean() > 1.01 * b.std.mean()
    power = [fitted.fitted_.population, plain.fitted_.population]
    assert all(torch.equal(p, q) for p, q in zip(*(m.parameters() for m in power), strict=True))


def test_features_of_a_model_by_hand():
    """The share that a model states, computed in NumPy from its weights and rows."""
    x, y = table(90)
    members = hold_out(np.arange(90), [1, 2], 0.2)
    model = hs.fitting.fit(Evidential(0.01), x, y, members, recipe=quick_recipe(), device="cpu")
    faded = with_fading(model, x, members, 1.5)
    asked = 4 * table(20, seed=2)[0]
    _, keep = faded.ask(asked)
    for k, member in enumerate(members):
        weight, bias = (
            p[k].detach().double().numpy() for p in (model.population.weights[0], model.population.biases[0])
        )
        mean, spread = x[member.train].mean(0), x[member.train].std(0)

        def hidden(rows, weight=weight, bias=bias, mean=mean, spread=spread):
            z = (rows - mean) / spread @ weight + bias
            return torch.from_numpy(z * norm.cdf(z))  # gelu

        train = hidden(x[member.train])
        reach = np.sort(by_scipy(hidden(x[member.validation]), train, 32, fitting.RIDGE))[int(np.ceil(0.9 * 18)) - 1]
        expected = np.minimum(1, (reach / by_scipy(hidden(asked), train, 32, fitting.RIDGE)) ** 1.5)
        np.testing.assert_allclose(keep[k], expected, rtol=1e-4)
    assert faded.training is model.training
    assert model.fading is None


def quick_recipe():
    recipe = Evidential(0.01).recipe(100)
    return fitting.replace(
        recipe,
        network=fitting.replace(recipe.network, hidden=(16, 16)),
        settings=fitting.replace(recipe.settings, steps=20, evaluate_every=5),
    )


def test_a_model_survives_its_copies(fitted, tmp_path):
    x = 3 * table(30, seed=3)[0]
    expected = fitted.predict_distribution(x)
    assert expected.familiarity.min() < 1
    loaded = hs.load(fitted.save(tmp_path / "model"))
    for copy in (loaded, pickle.loads(pickle.dumps(fitted))):
        p = copy.predict_distribution(x)
        assert np.array_equal(p.familiarity, expected.familiarity)
        assert np.array_equal(p.interval(0.9), expected.interval(0.9))
        assert copy.fading_power_ == fitted.fading_power_
        assert copy.get_params()["evidence"] == "fading"
    assert clone(fitted).evidence == "fading"
    assert clone(fitted).set_params(evidence="plain").get_params()["evidence"] == "plain"


def test_a_model_of_an_earlier_version_keeps_all_evidence(fitted, plain, tmp_path):
    tensors, settings = load_model(plain.save(tmp_path / "new"))
    assert not any(name.startswith("fading") for name in tensors)
    del settings["parameters"]["evidence"]
    settings.pop("fading", None)
    old = hs.load(save_model(tmp_path / "old", tensors, settings))
    x = 3 * table(30, seed=3)[0]
    assert np.array_equal(old.predict_distribution(x).std, plain.predict_distribution(x).std)
    assert old.predict_distribution(x).familiarity is None
    assert old.evidence == "plain"  # a refit of it does what it did
    # a model is what it was fitted as, whatever its parameters are set to later
    changed = hs.load(clone_of(plain).set_params(evidence="fading").save(tmp_path / "changed"))
    assert changed.predict_distribution(x).familiarity is None


def clone_of(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("reach", lambda t: -t),
        ("reach", lambda t: t * torch.nan),
        ("reach", lambda t: t[:1]),
        ("reach", lambda t: t.float()),
        ("power", lambda t: t + torch.inf),
        ("power", lambda t: t[0]),
        ("power", lambda t: -t),
        ("rest", lambda t: t - 1e9),
        ("mean", lambda t: t[:, :-1]),
        ("mean", lambda t: t * torch.nan),
        ("mean", lambda t: None),
        ("projection", lambda t: None),
        ("projection", lambda t: t[0]),
        ("projection", lambda t: t[:, :, :1]),
        ("projection", lambda t: torch.cat([t, t, t], -1)),
        ("projection", lambda t: t.transpose(1, 2).contiguous()),
        ("extra", lambda t: torch.ones(2)),
    ],
)
def test_forged_fading_is_refused(fitted, tmp_path, name, change):
    tensors, settings = load_model(fitted.save(tmp_path / "model"))
    forged = change(tensors.get(f"fading.{name}"))
    tensors.pop(f"fading.{name}", None)
    if forged is not None:
        tensors[f"fading.{name}"] = forged.contiguous().clone()
    with pytest.raises(hs.InputError, match="fad"):
        hs.load(save_model(tmp_path / "forged", tensors, settings))


def test_a_model_that_lost_its_fading_is_refused(fitted, tmp_path):
    tensors, settings = load_model(fitted.save(tmp_path / "model"))
    rest = {name: t for name, t in tensors.items() if not name.startswith("fading")}
    with pytest.raises(hs.InputError, match="fad"):
        hs.load(save_model(tmp_path / "forged", rest, settings))


def test_what_evidence_may_be():
    x, y = table(20)
    for wrong in ("nonsense", None, True, ["fading"], np.array(["fading", "plain"])):
        with pytest.raises(hs.InputError, match="evidence must be 'fading' or 'plain', got"):
            hs.EvidentialRegressor(**QUICK, evidence=wrong).fit(x, y)
    assert hs.EvidentialRegressor().evidence == "fading"
    assert hs.EnsembleRegressor().evidence == "plain"


@pytest.mark.parametrize("rows", [10, 49, 50])
def test_tables_of_few_rows(rows):
    x, y = table(rows)
    model = hs.EvidentialRegressor(**QUICK).fit(x, y)
    assert (model.fading_power_ == fitting.USUAL_POWER) or rows >= 50
    near, far = model.predict_distribution(x), model.predict_distribution(x * 1e4)
    assert far.familiarity.max() < 0.2
    assert np.median(far.std) > near.std.max()


@pytest.mark.parametrize(("rows", "share"), [(2, 0.1), (3, 0.1), (60, 0.99)])
def test_a_network_that_learns_from_one_row(rows, share):
    x, y = table(rows)
    p = hs.EvidentialRegressor(**QUICK, validation_fraction=share).fit(x, y).predict_distribution(x)
    assert ((p.familiarity > 0) & (p.familiarity <= 1)).all()
    assert np.isfinite(p.std).all()


@pytest.mark.parametrize(
    "options",
    [
        {"members": 1},
        {"members": 9},
        {"hidden": ()},
        {"validation_fraction": 0.0},
        {"validation_fraction": 0.8},
        {"batch_size": 1},
        {"steps": 1},
        {"penalty": "kl"},
    ],
)
def test_settings(options):
    x, y = table(60)
    model = hs.EvidentialRegressor(**{**QUICK, **options}).fit(x, y)
    near, far = model.predict_distribution(x), model.predict_distribution(x + 100 * directions(count=60))
    assert np.median(near.familiarity) > 0.5
    assert far.familiarity.max() < 0.7 * near.familiarity.max()
    assert np.isfinite(far.interval(0.9)).all()
    assert np.isfinite(far.std).all()


@pytest.mark.parametrize("kind", ["one", "constant", "text", "twice", "same", "float32"])
def test_odd_tables(kind):
    x, y = table(80)
    far = x + 100
    if kind == "one":
        x, far, y = x[:, :1], far[:, :1], x[:, 0] ** 3
    elif kind == "constant":
        x[:, 1] = far[:, 1] = 7
    elif kind == "text":
        x = pd.DataFrame({"a": np.where(x[:, 0] > 0, "yes", "no"), "b": np.where(x[:, 1] > 1, "up", "down")})
        far = pd.DataFrame({"a": ["new"] * 80, "b": [None] * 80})
    elif kind == "twice":
        x[40:], y[40:] = x[:40], y[:40]
    elif kind == "same":
        x[:] = 1
    else:
        x, y, far = (a.astype(np.float32) for a in (x, y, far))
    model = hs.EvidentialRegressor(**QUICK)
    model.fit(x, y)
    near, far = model.predict_distribution(x).familiarity, model.predict_distribution(far).familiarity
    assert np.median(near) > 0.9
    assert np.isfinite(far).all()
    if kind == "same":
        assert (near == 1).all()
        assert model.fading_power_ == fitting.USUAL_POWER
    elif kind != "text":
        assert far.max() < 0.5


def test_outliers_and_far_rows_do_not_break_it():
    x, y = table(100)
    x[3, 1] = 1e300
    model = hs.EvidentialRegressor(**QUICK).fit(x, y)
    p = model.predict_distribution(np.array([[0.0, 0, 0], [0, 1e300, 0], [-1e300, 0, 1e300]]))
    assert np.isfinite(p.familiarity).all()
    assert np.isfinite(p.mean).all()
    assert p.familiarity[0] == 1


def test_several_targets_and_weights():
    x, y = table(100)
    weights = np.ones(100)
    weights[::3] = 0
    model = hs.EvidentialRegressor(**QUICK).fit(x, np.column_stack([y, -1000 * y]), sample_weight=weights)
    p = model.predict_distribution(x * 50)
    assert p.familiarity.shape == (100,)
    assert p.std.shape == (100, 2)
    frame = p.to_frame()
    assert "familiarity" in frame.columns
    # rows of weight 0 are not there: others in their place make the same model
    x[::3], y[::3] = 1e3, 1e3
    again = hs.EvidentialRegressor(**QUICK).fit(x, np.column_stack([y, -1000 * y]), sample_weight=weights)
    asked = table(20, seed=4)[0] * 3
    assert np.array_equal(model.predict_distribution(asked).familiarity, again.predict_distribution(asked).familiarity)
    assert model.fading_power_ == again.fading_power_


@pytest.mark.parametrize("kind", ["positive", "log"])
def test_targets_that_cannot_be_negative(kind):
    x, y = table(80)
    model = hs.EvidentialRegressor(**QUICK, target_transform=kind).fit(x, np.exp(y))
    near, far = (model.predict_distribution(x * scale) for scale in (1, 100))
    assert far.familiarity.max() < near.familiarity.min() or far.familiarity.max() < 0.5
    low, high = far.interval(0.9).T
    assert (low >= 0).all()
    assert (high > low).all()
    if kind == "positive":
        assert np.isfinite(far.std).all()


def test_ensembles_may_fade():
    x, y = table(100)
    faded = hs.EnsembleRegressor(**QUICK, evidence="fading").fit(x, y)
    plain = hs.EnsembleRegressor(**QUICK).fit(x, y)
    a, b = faded.predict_distribution(x * 9), plain.predict_distribution(x * 9)
    assert b.familiarity is None
    assert np.array_equal(a.mean, b.mean)
    _, keep = faded.fitted_.ask(faded.encoding_.transform(faded._read(x * 9, faded.encoding_)))
    usual = faded.fitted_.usual().scale
    scale = torch.maximum(b.answers.scale, b.answers.scale**keep * usual ** (1 - keep))
    variance = (scale**2 / keep).mean(0) + b.answers.loc.var(0, correction=0)
    np.testing.assert_allclose(a.std, variance.sqrt(), rtol=1e-6)
    np.testing.assert_allclose(a.familiarity, keep.mean(0), rtol=1e-6)


def test_one_seed_one_model_in_any_thread():
    x, y = table(60)
    alone = hs.EvidentialRegressor(**QUICK).fit(x, y)
    asked = 3 * x[:20]
    with ThreadPoolExecutor(2) as pool:
        models = pool.map(lambda _: clone(alone).fit(x, y), range(2))
    for model in models:
        assert model.fading_power_ == alone.fading_power_
        a, b = model.predict_distribution(asked), alone.predict_distribution(asked)
        assert np.array_equal(a.familiarity, b.familiarity)
        assert np.array_equal(a.std, b.std)


def test_cross_validation_and_frames(fitted):
    x, y = table(90)
    scores = cross_val_score(hs.EvidentialRegressor(**QUICK), x, y, cv=2, scoring=hs.scorers.nll)
    assert np.isfinite(scores).all()
    p = fitted.predict_distribution(x * 5)
    assert np.array_equal(p.to_frame()["familiarity"], p.familiarity)


def test_an_interrupt_in_the_folds_leaves_the_estimator_as_it_was(fitted, monkeypatch):
    x, y = table(100)
    model = clone_of(fitted)
    expected, before = model.predict_distribution(x).familiarity, dict(model.__dict__)

    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("howsure.fitting.fading.extrapolation_folds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:60], y[:60])
    assert model.__dict__.keys() == before.keys()
    assert all(model.__dict__[name] is value for name, value in before.items())
    assert np.array_equal(model.predict_distribution(x).familiarity, expected)


def test_folds_that_diverge_leave_the_usual_power(monkeypatch):
    """The networks of the folds reach values that are not finite, those of the model do not."""
    x, y = table(100)
    fit = fitting.fit

    def fast(method, x, y, members, *, recipe, **options):
        settings = fitting.replace(recipe.settings, learning_rate=1e20, warmup=0.0)
        return fit(method, x, y, members, recipe=fitting.replace(recipe, settings=settings), **options)

    monkeypatch.setattr("howsure.fitting.fading.fit", fast)
    model = hs.EvidentialRegressor(**QUICK).fit(x, y)
    assert model.fading_power_ == fitting.USUAL_POWER
    assert np.isfinite(model.predict_distribution(x * 100).std).all()


@pytest.mark.parametrize("members", [1, 4])
def test_far_away_a_regressor_is_no_surer_than_inside(members):
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 4))
    y = x.sum(1) + 0.3 * random.standard_normal(300)
    model = hs.EvidentialRegressor(hidden=(32, 32), members=members, steps=300, random_state=0).fit(x, y)
    directions = random.standard_normal((100, 4))
    far = 50 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    p, inside = model.predict_distribution(far), model.predict_distribution(x)
    assert p.familiarity.max() < 0.1
    assert p.std.min() > np.median(inside.std)
    assert np.diff(p.interval(0.9)).min() > np.median(np.diff(inside.interval(0.9)))


def test_what_a_network_usually_says_is_saved_and_checked(tmp_path):
    x, y = table(100)
    model = hs.EvidentialRegressor(**QUICK).fit(x, y)
    again = hs.load(model.save(tmp_path / "model"))
    assert np.array_equal(again.predict_distribution(x * 9).std, model.predict_distribution(x * 9).std)
    tensors, settings = model.fitted_.state()
    usual = tensors["typical.nu"]
    for change in ({"typical.nu": -usual}, {"typical.nu": usual[:1]}, {"typical.x": usual}):
        with pytest.raises(InputError, match="typical"):
            Fitted.from_state({**tensors, **change}, settings)


def test_about_one_percent_of_new_rows_like_the_training_rows_are_unfamiliar(tmp_path):
    random = np.random.default_rng(3)
    x = random.normal(size=(2300, 3))
    y = x[:, 0] + random.normal(size=2300)
    model = hs.EvidentialRegressor(members=10, steps=30, inputs="numbers", random_state=0).fit(x[:300], y[:300])
    flagged = model.predict_distribution(x[300:]).familiarity < model.unfamiliar_below_
    assert 0 < flagged.mean() < 0.03
    assert model.predict_distribution(np.full((1, 3), 9.0)).familiarity[0] < model.unfamiliar_below_
    assert hs.load(model.save(tmp_path / "model")).unfamiliar_below_ == model.unfamiliar_below_
    without = hs.EvidentialRegressor(members=2, steps=5, validation_fraction=0, random_state=0).fit(x[:50], y[:50])
    assert without.unfamiliar_below_ == 0.5  # no row was held out that could tell


@pytest.mark.parametrize("forged", [7, -0.1, True, "low", None])
def test_a_forged_threshold_is_refused(forged, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = hs.EvidentialRegressor(members=2, steps=5, random_state=0).fit(x, x[:, 0])
    tensors, settings = model._state()
    save_model(tmp_path / "model", tensors, settings | {"unfamiliar_below": forged})
    with pytest.raises(InputError, match="which is no familiarity"):
        hs.load(tmp_path / "model")
