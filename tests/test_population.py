import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.nn import MLP, Population
from howsure_paper.baselines import BayesPopulation


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "tanh"])
def test_a_member_is_the_network_of_its_seed(activation):
    population = Population([3, 1, 4], 5, (7, 6), 4, activation)
    x = torch.randn(3, 9, 5)
    for i, seed in enumerate(population.seeds):
        alone = MLP(5, (7, 6), 4, activation, seed=seed)
        assert torch.allclose(population(x)[i], alone(x[i]), atol=1e-6)
        assert torch.allclose(population.member(i)(x[i]), alone(x[i]), atol=1e-6)
    shared = population(x[0])
    assert shared.shape == (3, 9, 4)
    assert torch.allclose(shared[0], population(x)[0], atol=1e-6)


def test_an_mlp_computes_what_linear_layers_do():
    mlp = MLP(5, (7,), 2, "relu", seed=1)
    layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    with torch.no_grad():
        for layer, weight, bias in zip((layers[0], layers[2]), mlp.weights, mlp.biases, strict=True):
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias)
    x = torch.randn(9, 5)
    assert torch.allclose(mlp(x), layers(x), atol=1e-6)
    # and starts in the same range
    assert mlp.weights[0].abs().max() <= 5**-0.5
    assert mlp.weights[0].abs().max() > 0.9 * 5**-0.5


def test_members_do_not_change_with_the_size_of_the_population():
    few, many = Population([7, 8], 5), Population([1, 2, 7, 8, 9], 5)
    assert torch.equal(few.weights[0][0], many.weights[0][2])


def test_some_members_can_be_taken_out():
    population = Population([3, 1, 4], 5, (7,), 4)
    x = torch.randn(9, 5)
    some = population.select([2, 0]).double()
    assert some.seeds == (4, 3)
    assert torch.allclose(some(x.double()).float(), population(x)[[2, 0]], atol=1e-6)
    assert population.members == 3
    assert population.weights[0].dtype == torch.float32


def test_dropout_drops_in_training_only():
    population = Population([0, 1, 2], 5, (200,), 4, dropout=(0.5, 0.0, 0.1))
    x = torch.randn(400, 5)
    noise = (population(x) - population.eval()(x)).std((1, 2))
    assert noise[1] == 0  # each member at its own rate
    assert noise[0] > 1.5 * noise[2] > 0
    assert torch.equal(population(x), population(x))


def test_bad_populations_are_refused():
    with pytest.raises(hs.InputError, match="unknown activation 'elu'; known are relu, silu, gelu, tanh"):
        Population([0], 5, activation="elu")
    with pytest.raises(hs.InputError, match="seeds is empty"):
        Population([], 5)
    with pytest.raises(hs.InputError, match="layer sizes must be at least 1"):
        MLP(5, (0,))
    with pytest.raises(hs.InputError, match=r"dropout must lie in \[0, 1\), got 1"):
        MLP(5, dropout=1.0)
    with pytest.raises(hs.InputError, match="dropout has 3 values for 2 members"):
        Population([0, 1], 5, dropout=(0.1, 0.2, 0.3))
    with pytest.raises(hs.InputError, match=r"shape \(2, N, 5\) or \(N, 5\), got \(3, 9, 5\)"):
        Population([0, 1], 5)(torch.zeros(3, 9, 5))


def test_thinned_networks_average_to_the_whole():
    population = Population([0, 1], 5, (400,), 2, "relu", dropout=0.5)
    x = torch.randn(4, 5)
    population.eval()
    thin = population.thin([0, 1], 300)
    assert thin.members == 600
    drawn = thin.eval()(x).unflatten(0, (2, 300))
    assert torch.allclose(drawn.mean(1), population(x), atol=0.1)
    assert drawn.std(1).min() > 0
    again = population.thin([1], 300)
    assert torch.equal(again.weights[1], thin.weights[1][300:])  # a member's draws do not depend on the others


def test_a_bayesian_population():
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


KINDS = {
    "dropout": lambda: Population([3, 1], 5, (7, 6), 4, dropout=0.3),
    "bayes": lambda: BayesPopulation([3, 1], 5, (7, 6), 4, dropout=0.2),
}


@pytest.fixture
def double_default():
    """Code of ours must not follow torch's default dtype, which some programs set to float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def everything(kind):
    """Parameters, buffers, a training pass and the drawn networks of a population, as a flat list of tensors."""
    population = KINDS[kind]()
    population.generator = torch.Generator().manual_seed(5)
    x = torch.linspace(-2, 2, 45, dtype=torch.float32).view(9, 5)
    drawn = population.draw([1, 0], 3) if kind == "bayes" else population.thin([1, 0], 3)
    divergence = [population.divergence()] if kind == "bayes" else []
    own = [*population.parameters(), *population.buffers(), population(x), population.member(0).eval()(x), *divergence]
    return [t.detach() for t in (*own, *drawn.parameters(), drawn.eval()(x))]


EXPECTED = {kind: everything(kind) for kind in KINDS}  # made at import, under the usual default


@pytest.mark.parametrize("kind", KINDS)
def test_a_float64_default_changes_nothing(kind, double_default):
    for expected, got in zip(EXPECTED[kind], everything(kind), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_draws_what_torch_would_with_the_same_seed(kind):
    population, x = KINDS[kind](), torch.randn(9, 5)
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
    assert population.select([0]).generator is None


@pytest.mark.parametrize("kind", KINDS)
def test_threads_with_generators_of_their_own_do_not_disturb_each_other(kind):
    x = torch.randn(50, 5)

    def passes(seed):
        population = KINDS[kind]()
        population.generator = torch.Generator().manual_seed(seed)
        return torch.stack([population(x).detach() for _ in range(40)])

    alone = [passes(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(passes, range(4)))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a, b)


def test_a_network_without_hidden_units_is_linear():
    x = torch.randn(9, 5)
    population = Population([3, 1], 5, (), 2)
    for i in range(2):
        expected = x @ population.weights[0][i] + population.biases[0][i]
        assert torch.allclose(population(x)[i], expected, atol=1e-6)
        assert torch.allclose(population.member(i)(x), expected, atol=1e-6)
        assert torch.allclose(MLP(5, (), 2, seed=(3, 1)[i])(x), expected, atol=1e-6)
    assert torch.equal(population.thin([1, 0], 3)(x), population(x)[[1, 1, 1, 0, 0, 0]])
    bayes = BayesPopulation([3, 1], 5, (), 2)
    assert bayes.draw([1], 3)(x).shape == (3, 9, 2)
    assert bayes(x).shape == (2, 9, 2)
    for make in (MLP, lambda *a, **k: Population([0], *a, **k), lambda *a, **k: BayesPopulation([0], *a, **k)):
        with pytest.raises(hs.InputError, match=r"dropout drops hidden units, but hidden=\(\) has none"):
            make(5, (), 2, dropout=0.1)


@pytest.mark.parametrize("size", [10.5, 10.0, True, "64", None, float("nan"), torch.tensor(3)])
def test_layer_sizes_are_whole_numbers(size):
    for arguments in ((5, (size,), 2), (size, (4,), 2), (5, (4,), size)):
        with pytest.raises(hs.InputTypeError, match=r"layer sizes must be whole numbers, got .* in \("):
            MLP(*arguments)
        with pytest.raises(hs.InputTypeError, match="layer sizes must be whole numbers, got"):
            Population([0], *arguments)


def test_sizes_may_be_numpys():
    mlp = MLP(np.int64(5), np.array([7, 6]), np.uint8(2))
    assert mlp.sizes == (5, 7, 6, 2)
    assert all(type(size) is int for size in mlp.sizes)
    assert mlp(torch.zeros(3, 5)).shape == (3, 2)


def test_what_is_given_per_member_may_be_an_array():
    for rates in (np.array([0.1, 0.2]), torch.tensor([0.1, 0.2]), (0.1, 0.2)):
        assert Population([0, 1], 5, dropout=rates).dropout == pytest.approx((0.1, 0.2))
    assert Population(np.array([4, 2]), 5, dropout=np.float32(0.5)).seeds == (4, 2)


def test_other_bad_populations_are_refused():
    with pytest.raises(hs.InputTypeError, match=r"hidden must be a sequence of layer sizes such as \(64,\), got 64"):
        MLP(5, 64)
    with pytest.raises(hs.InputTypeError, match=r"seeds must be whole numbers, got 1\.5"):
        Population([1.5], 5)
    with pytest.raises(hs.InputTypeError, match="seeds must be a sequence of whole numbers, got 3"):
        Population(3, 5)
    with pytest.raises(hs.InputError, match=r"seeds must lie in .*, got 18446744073709551616"):
        Population([2**64], 5)
    with pytest.raises(hs.InputError, match=r"dropout must lie in \[0, 1\), got nan"):
        MLP(5, dropout=float("nan"))
    for name in ("prior_std", "initial_std"):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(hs.InputError, match=f"{name} must be a finite number greater than 0, got {value}"):
                BayesPopulation([0], 5, **{name: value})
    population = Population([0, 1], 5)
    with pytest.raises(hs.InputTypeError, match=r"Population expects floating-point features, not torch\.int64"):
        population(torch.zeros(3, 5, dtype=torch.int64))
    with pytest.raises(hs.InputTypeError, match="Population expects a tensor of features, not ndarray"):
        population(np.zeros((3, 5)))
