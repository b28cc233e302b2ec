import itertools

import numpy as np
import pytest
import torch

import howsure as hs
from fits import fit
from howsure import metrics
from howsure.likelihoods import Evidential, Network, NormalLikelihood, Recipe
from howsure.tables.members import Member, hold_out
from howsure.training import Settings

QUICK = Recipe(Network((32,)), Settings(steps=300, learning_rate=1e-2, evaluate_every=50), 32)


def data(n=200, seed=0):
    g = np.random.default_rng(seed)
    x = g.standard_normal((n, 3))
    return x, 2 * x[:, 0] - x[:, 1] ** 2 + 0.3 * g.standard_normal(n)


@pytest.mark.parametrize("method", [Evidential(), NormalLikelihood()])
def test_population_learns(method):
    x, y = data()
    train = np.arange(150)
    fitted = fit(method, x, y, hold_out(train, range(4)), recipe=QUICK)
    p = fitted.predict(x[150:])
    assert p.shape == (50,)
    assert p.distribution.members == 4
    assert metrics.rmse(p, y[150:]) < 0.7 * y.std()
    assert 0.7 < metrics.coverage(p, y[150:]) <= 1
    some = fitted.predict(x[150:], members=[1, 3])
    assert some.distribution.members == 2
    own = p.distribution.components.loc[1]
    assert np.allclose(fitted.predict(x[150:], members=[1]).mean, own)
    state = torch.get_rng_state()
    again = fit(method, x, y, hold_out(train, range(4)), recipe=QUICK).predict(x[150:])
    assert np.array_equal(again.mean, p.mean)  # same seeds, same numbers
    assert torch.equal(state, torch.get_rng_state())  # and none taken from torch's global generator


def test_fit_does_not_mind_where_it_is_called():
    x, y = data()
    with torch.inference_mode():
        fitted = fit(Evidential(), x, y, hold_out(np.arange(100), [0]), recipe=QUICK)
    assert metrics.rmse(fitted.predict(x), y) < y.std()


def test_test_rows_leave_no_trace():
    """Whatever stands in rows that no member was given, the fit is the same to the last bit."""
    x, y = data()
    members = hold_out(np.arange(100), range(2))
    plain = fit(Evidential(), x, y, members, recipe=QUICK).predict(x[100:])
    y2 = y.copy()
    y2[100:] = 1e6
    assert np.array_equal(fit(Evidential(), x, y2, members, recipe=QUICK).predict(x[100:]).mean, plain.mean)


@pytest.mark.parametrize(("factor", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 1e6), (-2.0, 3.0)])
def test_predictions_follow_the_units_of_y(factor, shift):
    x, y = data()
    members = hold_out(np.arange(150), range(2))
    base = fit(Evidential(), x, y, members, recipe=QUICK).predict(x[150:])
    moved = fit(Evidential(), x, shift + factor * y, members, recipe=QUICK).predict(x[150:])
    if factor > 0:  # mirrored targets start from other networks
        assert np.allclose((moved.mean - shift) / factor, base.mean, rtol=1e-3, atol=1e-3)
        assert np.allclose(moved.std / abs(factor), base.std, rtol=1e-3)
        assert np.allclose(moved.epistemic_std / abs(factor), base.epistemic_std, rtol=1e-2, atol=1e-4)
    assert metrics.nll(moved, shift + factor * y[150:]) == pytest.approx(
        metrics.nll(base, y[150:]) + np.log(abs(factor)), abs=0.5
    )


def test_edges_of_a_table():
    x, y = data(60)
    members = hold_out(np.arange(60), range(2))
    fitted = fit(Evidential(), x, y, members, recipe=QUICK)
    nothing = fitted.predict(x[:0])
    assert nothing.mean.shape == nothing.std.shape == (0,)
    assert nothing.interval().shape == (0, 2)
    assert len(nothing.to_frame()) == 0
    assert fitted.predict(x[:1]).mean.shape == (1,)
    constant = fit(Evidential(), x, np.full(60, 7.0), members, recipe=QUICK).predict(x)
    assert np.abs(constant.mean - 7).max() < 0.2
    assert constant.std.max() < 0.5
    blind = fit(Evidential(), np.zeros_like(x), y, members, recipe=QUICK).predict(np.zeros((1, 3)))
    assert blind.std[0] == pytest.approx(y.std(), rel=0.5)  # features that say nothing leave the spread of y


def test_features_of_very_different_scale():
    x, y = data()
    scaled = x * [1e-9, 1.0, 1e9] + [0.0, 1e6, 0.0]
    members = hold_out(np.arange(150), range(2))
    a = fit(Evidential(), x, y, members, recipe=QUICK).predict(x[150:])
    b = fit(Evidential(), scaled, y, members, recipe=QUICK).predict(scaled[150:])
    assert np.allclose(a.mean, b.mean, atol=1e-2)


def test_many_targets():
    x, y = data()
    both = np.stack([y, 100 - 5 * y], axis=1)
    p = fit(Evidential(), x, both, hold_out(np.arange(150), range(3)), recipe=QUICK).predict(x[150:])
    assert p.shape == (50, 2)
    for t in range(2):
        assert np.corrcoef(p.mean[:, t], both[150:, t])[0, 1] > 0.8
    assert np.median(p.std[:, 1] / p.std[:, 0]) == pytest.approx(5, rel=0.5)


def test_one_weight_per_member():
    x, y = data()
    members = [Member(m.train, m.validation, 7) for m in hold_out(np.arange(150), [7]) * 2]
    fitted = fit(Evidential(weight=[0.0, 1.0]), x, y, members, recipe=QUICK)
    alone = fit(Evidential(weight=1.0), x, y, members[1:], recipe=QUICK)
    one, other = fitted.predict(x[150:], [0]), fitted.predict(x[150:], [1])
    assert np.allclose(other.mean, alone.predict(x[150:]).mean, atol=1e-3)
    # more penalty, more of the variance called epistemic
    shares = [p.decompose("paper").epistemic.mean() / p.variance.mean() for p in (one, other)]
    assert shares[1] > shares[0]


def test_sample_weights_decide_between_two_truths():
    x, _ = data(200)
    y = np.where(np.arange(200) % 2 == 0, 1.0, -1.0) + 0.1 * x[:, 0]
    weight = np.where(np.arange(200) % 2 == 0, 1.0, 0.0)
    members = hold_out(np.arange(200), range(2))
    p = fit(Evidential(), x, y, members, recipe=QUICK, sample_weight=weight).predict(x)
    assert np.abs(p.mean - 1).mean() < 0.3
    even = fit(Evidential(), x, y, members, recipe=QUICK, sample_weight=np.full(200, 7.0)).predict(x)
    assert np.allclose(even.mean, fit(Evidential(), x, y, members, recipe=QUICK).predict(x).mean, atol=1e-2)


def test_each_member_holds_out_its_own_rows():
    rows = np.arange(50, 150)
    members = hold_out(rows, [1, 2], share=0.2)
    for m in members:
        assert len(m.validation) == 20
        assert sorted([*m.train.tolist(), *m.validation.tolist()]) == rows.tolist()
    assert members[0].validation.tolist() != members[1].validation.tolist()


def test_mixture_recovers_known_noise():
    x = np.linspace(-4, 4, 500)[:, None]
    y = x[:, 0] ** 3 + 3 * np.random.default_rng(0).standard_normal(500)
    recipe = Recipe(Network((64, 64)), Settings(steps=1000, learning_rate=5e-3, evaluate_every=50), 64)
    p = fit(Evidential(), x, y, hold_out(np.arange(500), range(4)), recipe=recipe).predict(x)
    assert np.median(p.aleatoric_std) == pytest.approx(3, rel=0.2)
    assert np.median(np.sqrt(p.decompose("paper").aleatoric)) < 2.7  # the paper's reading does not


def test_recipes_grow_with_the_table_and_never_jump():
    def cost(rows):
        recipe = Recipe.for_rows(rows)
        sizes = [10, *recipe.network.hidden, 4]
        return recipe.settings.steps * recipe.batch_size * sum(a * b for a, b in itertools.pairwise(sizes))

    rows = [int(100 * 1.05**k) for k in range(220)]
    assert rows[-1] > 4_000_000
    ratios = [cost(large) / cost(small) for small, large in itertools.pairwise(rows)]
    assert max(ratios) < 1.5
    assert min(ratios) > 1 / 1.5
    assert cost(rows[-1]) > 50 * cost(500)


@pytest.mark.parametrize("change", [{"x": np.full((10, 2), np.nan)}, {"y": np.r_[np.zeros(9), np.inf]}])
def test_features_and_targets_that_are_not_finite_raise(change):
    good = {"x": np.random.default_rng(0).random((10, 2)), "y": np.arange(10.0)}
    with pytest.raises(hs.InputError, match="NaN"):
        fit(Evidential(), **{**good, **change}, members=hold_out(np.arange(10), [0]), recipe=QUICK)


def test_features_to_predict_must_have_the_columns_of_training():
    x, y = data(60)
    fitted = fit(Evidential(), x, y, hold_out(np.arange(60), [0]), recipe=Recipe(Network((4,)), Settings(steps=2), 4))
    with pytest.raises(hs.InputError, match=r"\bx\b"):
        fitted.predict(np.zeros((5, 2)))
