"""What networks see of a row beside its features: bins, trees, and how much each kind of network counts."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.base import clone

import howsure as hs
from howsure import EnsembleRegressor, EvidentialRegressor, InputError
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.nn import PiecewiseLinear, Population
from howsure.nn.embedding import MAX_BINS, quantile_edges
from howsure.tables.members import Member, hold_in_turn
from howsure.tables.stacking import stacked, stacking_weights
from howsure.tables.target import Target
from howsure.tables.train import train
from howsure.tables.views import Views
from howsure.training import Settings

QUICK = Recipe(Network((16, 16), "gelu"), Settings(steps=60, evaluate_every=20), 32)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=120), rng.gamma(1.0, 5.0, 120), rng.integers(0, 2, 120), np.ones(120)])
    return x, np.sign(x[:, 0]) * 3 + x[:, 2] + 0.3 * rng.normal(size=120)


@pytest.fixture(scope="module")
def model(table):
    x, y = table
    return EvidentialRegressor(members=6, steps=80, random_state=0).fit(x, y)


# Bins -----------------------------------------------------------------------------------------------------------------


def places(x, edges):
    """Places in bins by their definition, one number and one bin after the other."""
    columns = []
    for k, each in enumerate(e.numpy() for e in edges):
        for b in range(len(each) - 1):
            z = (x[:, k] - each[b]) / (each[b + 1] - each[b])
            columns.append(np.clip(z, -1 if b == 0 else 0, 2 if b == len(each) - 2 else 1) - 0.5)
    return np.column_stack(columns)


def test_bins_are_quantiles_of_numbers_that_vary(table):
    x, _ = table
    edges = quantile_edges(torch.from_numpy(x))
    assert [len(e) for e in edges] == [17, 17, 0, 0]  # of two values the number itself says all
    assert np.allclose(edges[1], np.quantile(x[:, 1], np.linspace(0, 1, 17)))


def test_equal_quantiles_make_one_edge():
    x = torch.tensor([0.0] * 90 + list(range(1, 11))).reshape(-1, 1)
    (edges,) = quantile_edges(x)
    assert len(edges) >= 3
    assert bool((edges.diff() > 0).all())


def test_many_columns_have_fewer_bins():
    rng = torch.Generator().manual_seed(0)
    edges = quantile_edges(torch.randn(50, 300, generator=rng))
    assert sum(max(0, len(e) - 1) for e in edges) <= MAX_BINS
    assert all(len(e) == 0 for e in quantile_edges(torch.randn(50, 600, generator=rng)))


def test_embedding_is_its_definition_for_members_that_scale_differently(table):
    x, _ = table
    edges = quantile_edges(torch.from_numpy(x))
    loc, scale = torch.tensor([[0.0], [3.0]]).view(2, 1, 1), torch.tensor([[1.0], [7.0]]).view(2, 1, 1)
    loc, scale = (t.expand(2, 1, 4).double() for t in (loc, scale))
    embedding = PiecewiseLinear.from_edges(edges, loc, scale, [True, True]).double()
    outside = np.concatenate([x, x * 3 - 10, x + 100])
    seen = (torch.from_numpy(outside) - loc) / scale
    found = embedding(seen)
    assert torch.equal(found[..., :4], seen)
    for member in range(2):
        assert np.allclose(found[member, :, 4:], places(outside, edges), atol=1e-5)


def test_member_without_bins_sees_zeros(table):
    edges = quantile_edges(torch.from_numpy(table[0]))
    loc, scale = torch.zeros(2, 1, 4).double(), torch.ones(2, 1, 4).double()
    embedding = PiecewiseLinear.from_edges(edges, loc, scale, [True, False])
    found = embedding(torch.from_numpy(table[0]).float().expand(2, -1, -1))
    assert embedding.seen == [True, False]
    assert not found[1, :, 4:].any()
    assert found[0, :, 4:].any()
    assert embedding.select([1]).seen == [False]


def test_population_rejects_an_embedding_of_another_size(table):
    edges = quantile_edges(torch.from_numpy(table[0]))
    embedding = PiecewiseLinear.from_edges(edges, torch.zeros(1, 1, 4), torch.ones(1, 1, 4), [True])
    with pytest.raises(InputError, match=r"\b10\b"):
        Population([0], 10).embed(embedding)
    networks = Population([0], 36).embed(embedding)
    assert networks.in_features == 4
    assert networks(torch.zeros(5, 4)).shape == (1, 5, 4)


# Rows that are held out -----------------------------------------------------------------------------------------------


def test_networks_hold_out_different_rows_in_turn():
    parts = hold_in_turn(np.arange(100, 200), 10, seed=0)
    held = np.concatenate([v.numpy() for _, v in parts])
    assert sorted(held) == list(range(100, 200))
    for inner, validation in parts:
        assert sorted(np.concatenate([inner, validation])) == list(range(100, 200))
    again = hold_in_turn(np.arange(100, 200), 13, seed=0)
    assert torch.equal(again[3][1], parts[3][1])
    assert not torch.equal(again[10][1], again[0][1])


@pytest.mark.parametrize(("rows", "share"), [(2, 0.1), (3, 0.5), (7, 0.9), (5, 0.0)])
def test_few_rows_leave_something_to_learn_from(rows, share):
    for inner, validation in hold_in_turn(np.arange(rows), 4, 1, share):
        assert len(inner) >= 1
        assert len(inner) + len(validation) == rows
        assert (len(validation) == 0) == (share == 0)


# How much a kind of network counts ------------------------------------------------------------------------------------


def test_stacking_weights_have_the_largest_likelihood():
    rng = np.random.default_rng(0)
    log_p = np.column_stack([rng.normal(-1, 1, 400), rng.normal(-1.2, 1.5, 400), rng.normal(-3, 0.5, 400)])
    found = stacking_weights(log_p)

    def surprise(free):
        w = np.exp(np.append(free, 0.0))
        return -np.log(np.exp(log_p) @ (w / w.sum())).mean()

    best = minimize(surprise, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}).x
    best = np.exp(np.append(best, 0.0))
    assert np.allclose(found, best / best.sum(), atol=0.01)
    assert found.sum() == pytest.approx(1)


def test_rows_of_weight_zero_do_not_count():
    log_p = np.array([[0.0, -5.0]] * 10 + [[-5.0, 0.0]] * 50)
    assert stacking_weights(log_p)[1] > 0.7
    assert stacking_weights(log_p, np.repeat([1.0, 0.0], [10, 50]))[0] > 0.7


def members_of(rows, kinds, each=2):
    parts = hold_in_turn(np.arange(rows), each, 0)
    return [
        Member(*parts[k // len(kinds)], k, "bins" in kinds[k % len(kinds)], "trees" in kinds[k % len(kinds)])
        for k in range(each * len(kinds))
    ]


def trained(x, y, members):
    """A trained model, and what its networks saw and learned."""
    target = Target(y)
    views = Views.fit(x, target, members, 0)
    return train(Evidential(), views, target, QUICK, device="cpu"), views, target


def test_networks_that_do_not_help_hardly_count(table):
    x, y = table
    members = members_of(120, ["numbers", "bins"])
    fitted, views, target = trained(x, y, members)
    with torch.no_grad():  # networks of the first kind that know nothing
        fitted.networks.weights[-1][[0, 2]] = 0
        fitted.networks.biases[-1][[0, 2], :, 0] = 50
    some = stacked(fitted, views, target)
    assert some.weights[[0, 2]].max() < 0.02
    assert some.weights[1] == some.weights[3]
    assert float(some.weights.sum()) == pytest.approx(1)


# Networks that see different things -----------------------------------------------------------------------------------


def test_networks_have_the_inputs_of_their_kind(table):
    x, y = table
    kinds = ["numbers", "bins", "trees", "bins+trees"]
    members = members_of(120, kinds)
    fitted, _, _ = trained(x, y, members)
    assert fitted.kinds() == [(m.bins, m.trees) for m in members]
    before = fitted.evaluate(x)[0]
    fitted.trees.boosted.offset.fill_(5.0)
    fitted.trees.forest.offset.fill_(5.0)
    after = fitted.evaluate(x)[0]
    for k, member in enumerate(members):
        assert bool((before.gamma[k] != after.gamma[k]).any()) is member.trees


def test_network_does_not_depend_on_other_members(table):
    x, y = table
    members = members_of(120, ["numbers", "bins", "trees"], each=1)
    together, views, target = trained(x, y, members)
    for k in range(len(members)):
        alone = train(Evidential(), views.select([k]), target, QUICK, device="cpu")
        assert np.allclose(together.predict(x, [k]).mean, alone.predict(x).mean, rtol=1e-3, atol=1e-3)


def test_trees_do_not_leak_targets_of_noise():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 5)), rng.normal(size=400)
    new_x, new_y = rng.normal(size=(400, 5)), rng.normal(size=400)
    model = EvidentialRegressor(members=2, inputs="trees", steps=300, random_state=0, evidence="plain").fit(x, y)
    p = model.predict_distribution(new_x)
    assert 0.85 < hs.metrics.coverage(p, new_y) < 0.95
    assert hs.metrics.rmse(p, new_y) < 1.1 * new_y.std()


# The regressor --------------------------------------------------------------------------------------------------------


def test_defaults_are_of_three_kinds(model, table):
    x, y = table
    assert set(model.inputs_) <= {"numbers", "bins", "trees", "linear"}
    assert sum(model.inputs_.values()) == pytest.approx(1)
    p = model.predict_distribution(x)
    assert p.weights is None or p.weights.sum() == pytest.approx(1)
    assert hs.metrics.rmse(p, y) < 1.0


@pytest.mark.parametrize("inputs", ["numbers", "bins", "trees", "bins+trees", ("numbers", "trees"), ["bins"]])
def test_kinds_can_be_chosen(table, inputs):
    x, y = table
    model = EvidentialRegressor(members=2, inputs=inputs, steps=20, random_state=0).fit(x, y)
    asked = {inputs} if isinstance(inputs, str) else set(inputs)
    assert set(model.inputs_) <= asked
    clone(model).fit(x, y)


@pytest.mark.parametrize("inputs", ["forest", (), ("numbers", 3), None, 7])
def test_unknown_kinds_raise(table, inputs):
    with pytest.raises(InputError, match="inputs"):
        EvidentialRegressor(inputs=inputs).fit(*table)


def test_few_networks_or_rows_see_numbers_alone(table):
    x, y = table
    assert EvidentialRegressor(members=2, steps=10).fit(x, y).inputs_ == {"numbers": 1.0}
    assert EvidentialRegressor(members=3, steps=10).fit(x[:40], y[:40]).inputs_ == {"numbers": pytest.approx(1.0)}


def test_ensemble_may_see_them_too(table):
    x, y = table
    model = EnsembleRegressor(members=3, inputs="auto", steps=30, random_state=0).fit(x, y)
    assert model.predict_interval(x).shape == (120, 2)
    assert EnsembleRegressor().inputs == "numbers"


def test_several_targets_and_weights_of_rows(table):
    x, y = table
    both = np.column_stack([y, -y])
    model = EvidentialRegressor(members=3, steps=30, random_state=0).fit(x, both, sample_weight=np.arange(120.0))
    assert model.predict(x).shape == (120, 2)


def test_saved_model_predicts_the_same(model, table, tmp_path):
    x, _ = table
    again = hs.load(model.save(tmp_path / "model"))
    assert again.inputs_ == pytest.approx(model.inputs_)
    for name in ("mean", "std", "epistemic_std"):
        assert np.array_equal(
            getattr(again.predict_distribution(x), name), getattr(model.predict_distribution(x), name)
        )


def test_predictions_of_a_row_do_not_depend_on_other_rows(model, table):
    x, _ = table
    whole = model.predict_distribution(x)
    for k in (0, 7, 119):
        one = model.predict_distribution(x[[k]])
        assert one.mean[0] == pytest.approx(whole.mean[k], rel=1e-9)
        assert one.std[0] == pytest.approx(whole.std[k], rel=1e-9)


def test_large_table_holds_out_a_bounded_number_of_rows():
    inner, validation = hold_in_turn(np.arange(150_000), 1, 0)[0]
    assert (len(inner), len(validation)) == (140_000, 10_000)
