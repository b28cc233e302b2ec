"""Monte Carlo dropout and Bayes by backprop for tables: their populations, and their fits."""

import copy
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import howsure as hs
from howsure import metrics
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.nn import Population
from howsure.tables.members import hold_out
from howsure.training import Settings
from howsure_paper.baselines import BayesByBackprop, BayesPopulation, DropoutPopulation, MCDropout
from howsure_paper.fused import fused_steps, required_fused_steps
from howsure_paper.search import search
from howsure_paper.training import fit

# Populations ----------------------------------------------------------------------------------------------------------


def test_dropout_drops_in_training_only():
    population = DropoutPopulation([0, 1, 2], 5, (200,), 4, dropout=(0.5, 0.0, 0.1))
    x = torch.randn(400, 5)
    noise = (population(x) - population.eval()(x)).std((1, 2))
    assert noise[1] == 0  # each member at its own rate
    assert noise[0] > 1.5 * noise[2] > 0
    assert torch.equal(population(x), population(x))


def test_dropout_population_without_dropout_is_a_population():
    x = torch.randn(9, 5)
    assert torch.equal(DropoutPopulation([3, 1], 5, (7, 6), 4)(x), Population([3, 1], 5, (7, 6), 4)(x))


def test_thinned_networks_average_to_the_whole():
    population = DropoutPopulation([0, 1], 5, (400,), 2, "relu", dropout=0.5)
    x = torch.randn(4, 5)
    population.eval()
    thin = population.thin([0, 1], 300)
    assert thin.members == 600
    drawn = thin.eval()(x).unflatten(0, (2, 300))
    assert torch.allclose(drawn.mean(1), population(x), atol=0.1)
    assert drawn.std(1).min() > 0
    again = population.thin([1], 300)
    assert torch.equal(again.weights[1], thin.weights[1][300:])  # a member's draws do not depend on the others


def test_bayesian_population():
    bayes = BayesPopulation([0, 1], 5, (50,), 2, prior_std=(1.0, 2.0), initial_std=0.2)
    x = torch.randn(4, 5)
    assert not torch.equal(bayes(x), bayes(x))  # drawn anew in training
    bayes.eval()
    assert torch.equal(bayes(x), Population([0, 1], 5, (50,), 2)(x))  # the means otherwise
    drawn = bayes.draw([0, 1], 500)
    spread = drawn.weights[0].unflatten(0, (2, 500)).std(1)
    assert torch.allclose(spread, torch.full_like(spread, 0.2 / 5**0.5), rtol=0.2)
    assert torch.equal(bayes.draw([1], 500).weights[0], drawn.weights[0][500:])
    normal = torch.distributions.Normal
    for i, prior in enumerate((1.0, 2.0)):
        expected = 0.0
        for weight, bias in zip(bayes.weights, bayes.biases, strict=True):
            inputs = weight.shape[1]
            for mean, scale in ((weight[i], inputs**-0.5), (bias[i], 1.0)):
                own, before = normal(mean, 0.2 / inputs**0.5), normal(0.0, prior * scale)
                expected += torch.distributions.kl_divergence(own, before).sum()
        assert torch.allclose(bayes.divergence()[i], expected, rtol=1e-4)


def test_noise_on_pre_activations_is_that_of_drawn_weights():
    """The training pass against the same network with weights drawn one by one."""
    bayes = BayesPopulation([0], 3, (), 2, initial_std=0.5)
    x = torch.randn(4, 3)
    passes = torch.stack([bayes(x)[0] for _ in range(4000)])
    drawn = bayes.draw([0], 4000)(x)
    assert torch.allclose(passes.mean(0), drawn.mean(0), atol=0.05)
    assert torch.allclose(passes.std(0), drawn.std(0), rtol=0.05)


POPULATIONS = {
    "dropout": lambda: DropoutPopulation([3, 1], 5, (7, 6), 4, dropout=0.3),
    "bayes": lambda: BayesPopulation([3, 1], 5, (7, 6), 4),
}


@pytest.fixture
def double_default():
    """Set torch's default dtype to float64, as some programs do. The populations must not follow it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def everything(kind):
    """Return parameters, buffers, a training pass and the drawn networks of a population, as a flat list of tensors."""
    population = POPULATIONS[kind]()
    population.generator = torch.Generator().manual_seed(5)
    x = torch.linspace(-2, 2, 45, dtype=torch.float32).view(9, 5)
    drawn = population.draw([1, 0], 3) if kind == "bayes" else population.thin([1, 0], 3)
    divergence = [population.divergence()] if kind == "bayes" else []
    first = population.select([0]).eval()(x)
    own = [*population.parameters(), *population.buffers(), population(x), first, *divergence]
    return [t.detach() for t in (*own, *drawn.parameters(), drawn.eval()(x))]


EXPECTED = {kind: everything(kind) for kind in POPULATIONS}  # made at import, under the usual default


@pytest.mark.parametrize("kind", POPULATIONS)
def test_float64_default_changes_nothing(kind, double_default):
    for expected, got in zip(EXPECTED[kind], everything(kind), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", POPULATIONS)
def test_generator_draws_equal_torch_with_the_same_seed(kind):
    population, x = POPULATIONS[kind](), torch.randn(9, 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        expected = [population(x), population(x)]
        before = torch.get_rng_state()
        population.generator = torch.Generator().manual_seed(11)
        assert torch.equal(population(x), expected[0])
        for copied in (copy.deepcopy(population), pickle.loads(pickle.dumps(population))):
            assert torch.equal(copied(x), expected[1])  # a copy goes on from the same state, on its own
        assert torch.equal(population(x), expected[1])
        assert torch.equal(torch.get_rng_state(), before)
    assert not any("generator" in name for name in population.state_dict())
    assert getattr(population.select([0]), "generator", None) is None


@pytest.mark.parametrize("kind", POPULATIONS)
def test_threads_with_generators_of_their_own_do_not_disturb_each_other(kind):
    x = torch.randn(50, 5)

    def passes(seed):
        population = POPULATIONS[kind]()
        population.generator = torch.Generator().manual_seed(seed)
        return torch.stack([population(x).detach() for _ in range(40)])

    alone = [passes(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(passes, range(4)))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a, b)


def test_populations_without_hidden_units():
    x = torch.randn(9, 5)
    population = DropoutPopulation([3, 1], 5, (), 2)
    assert torch.equal(population.thin([1, 0], 3)(x), population(x)[[1, 1, 1, 0, 0, 0]])
    bayes = BayesPopulation([3, 1], 5, (), 2)
    assert bayes.draw([1], 3)(x).shape == (3, 9, 2)
    assert bayes(x).shape == (2, 9, 2)
    with pytest.raises(hs.InputError, match="hidden="):
        DropoutPopulation([0], 5, (), 2, dropout=0.1)


def test_dropout_rates_of_any_sequence():
    for rates in (np.array([0.1, 0.2]), torch.tensor([0.1, 0.2]), (0.1, 0.2)):
        assert DropoutPopulation([0, 1], 5, dropout=rates).dropout == pytest.approx((0.1, 0.2))
    assert DropoutPopulation(np.array([4, 2]), 5, dropout=np.float32(0.5)).seeds == (4, 2)


@pytest.mark.parametrize(
    "rate",
    [
        1.0,
        -0.1,
        float("nan"),
        (0.1, 0.2, 0.3),
    ],
)
def test_impossible_dropout_raises(rate):
    with pytest.raises(hs.InputError, match="dropout"):
        DropoutPopulation([0, 1], 5, dropout=rate)


@pytest.mark.parametrize("name", ["prior_std", "initial_std"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_deviation_raises(name, value):
    with pytest.raises(hs.InputError, match=name):
        BayesPopulation([0], 5, **{name: value})


# Fits -----------------------------------------------------------------------------------------------------------------

QUICK = Recipe(Network((32,)), Settings(steps=300, learning_rate=1e-2, evaluate_every=50), 32)


def table(rows=200, seed=0):
    g = np.random.default_rng(seed)
    x = g.standard_normal((rows, 3))
    return x, 2 * x[:, 0] - x[:, 1] ** 2 + 0.3 * g.standard_normal(rows)


@pytest.mark.parametrize("method", [MCDropout(samples=3, rate=0.05), BayesByBackprop(samples=3)])
def test_population_learns(method):
    x, y = table()
    train = np.arange(150)
    fitted = fit(method, x, y, hold_out(train, range(4)), recipe=QUICK)
    p = fitted.predict(x[150:])
    assert p.shape == (50,)
    assert p.distribution.members == 12
    assert metrics.rmse(p, y[150:]) < 0.7 * y.std()
    assert 0.7 < metrics.coverage(p, y[150:]) <= 1
    some = fitted.predict(x[150:], members=[1, 3])
    assert some.distribution.members == 6
    own = p.distribution.components.loc[3:6].mean(0)
    assert np.allclose(fitted.predict(x[150:], members=[1]).mean, own)
    state = torch.get_rng_state()
    again = fit(method, x, y, hold_out(train, range(4)), recipe=QUICK).predict(x[150:])
    assert np.array_equal(again.mean, p.mean)  # same seeds, same draws
    assert torch.equal(state, torch.get_rng_state())  # and none taken from torch's global generator


def test_dropout_rate_per_member():
    x, y = table()
    fitted = fit(MCDropout(rate=[0.0, 0.5]), x, y, hold_out(np.arange(150), range(2)), recipe=QUICK)
    spreads = [fitted.predict(x[150:], members=[k]).decompose().epistemic.max() for k in range(2)]
    assert spreads[0] == pytest.approx(0, abs=1e-9)
    assert spreads[1] > 0


def test_recipes_of_bayes_by_backprop_grow_little_by_little():
    recipes = [BayesByBackprop().recipe(rows) for rows in (500, 2999, 3000, 5000, 100_000)]
    assert [r.network.hidden for r in recipes] == [(50,), (50,), (50, 50), (65, 65), (128, 128)]
    assert [r.batch_size for r in recipes] == [64, 120, 120, 168, 256]
    assert all(a.settings.steps <= b.settings.steps for a, b in itertools.pairwise(recipes))


def test_search_finds_the_clearly_better_value():
    g = np.random.default_rng(0)
    x = g.uniform(-1, 1, (200, 3))  # no row lies far from the others: its surprise would decide alone
    y = 2 * x[:, 0] - x[:, 1] ** 2 + 0.3 * g.standard_normal(200)
    quick = Recipe(Network((16,)), Settings(steps=200, learning_rate=1e-2, evaluate_every=50), 32)
    found = search(MCDropout(), x, y, [np.arange(200)], candidates=(0.8, 0.01), folds=4, recipe=quick)[0]
    assert found.chosen == 0.01


def test_one_kernel_without_cuda_raises_with_the_reason():
    x, y = table()
    members = hold_out(np.arange(len(y)), [0])
    with pytest.raises(hs.InputError, match="fused_steps"):
        fit(Evidential(), x, y, members, recipe=QUICK, device="cpu", fast_steps=required_fused_steps)
    plain = fit(Evidential(), x, y, members, recipe=QUICK, device="cpu")
    other = fit(Evidential(), x, y, members, recipe=QUICK, device="cpu", fast_steps=fused_steps)
    assert np.array_equal(plain.predict(x).mean, other.predict(x).mean)
