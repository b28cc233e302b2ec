import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.likelihoods import Evidential, Network
from howsure.nn import Population


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "tanh"])
def test_member_is_the_network_of_its_seed(activation):
    population = Population([3, 1, 4], 5, (7, 6), 4, activation)
    x = torch.randn(3, 9, 5)
    for i, seed in enumerate(population.seeds):
        alone = Population([seed], 5, (7, 6), 4, activation)
        assert torch.allclose(population(x)[i], alone(x[i])[0], atol=1e-6)
        assert torch.allclose(population.select([i])(x[i]), alone(x[i]), atol=1e-6)
    shared = population(x[0])
    assert shared.shape == (3, 9, 4)
    assert torch.allclose(shared[0], population(x)[0], atol=1e-6)


def test_population_equals_linear_layers():
    one = Population([1], 5, (7,), 2, "relu")
    layers = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    with torch.no_grad():
        for layer, weight, bias in zip((layers[0], layers[2]), one.weights, one.biases, strict=True):
            layer.weight.copy_(weight[0].T)
            layer.bias.copy_(bias[0, 0])
    x = torch.randn(9, 5)
    assert torch.allclose(one(x)[0], layers(x), atol=1e-6)
    # and starts in the same range
    assert one.weights[0].abs().max() <= 5**-0.5
    assert one.weights[0].abs().max() > 0.9 * 5**-0.5


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


def test_bad_populations_raise():
    with pytest.raises(hs.InputError, match="'elu'"):
        Population([0], 5, activation="elu")
    with pytest.raises(hs.InputError, match="seeds"):
        Population([], 5)
    with pytest.raises(hs.InputError, match=r"\(5, 0, 4\)"):
        Population([0], 5, (0,))
    with pytest.raises(hs.InputError, match=r"\(3, 9, 5\)"):
        Population([0, 1], 5)(torch.zeros(3, 9, 5))


@pytest.fixture
def double_default():
    """Code of ours must not follow torch's default dtype, which some programs set to float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def everything():
    """Return parameters, buffers and outputs of a population and of some of its members, as a flat list of tensors."""
    population = Population([3, 1], 5, (7, 6), 4)
    x = torch.linspace(-2, 2, 45, dtype=torch.float32).view(9, 5)
    some = population.select([1, 0])
    own = [*population.parameters(), *population.buffers(), population(x)]
    return [t.detach() for t in (*own, *some.parameters(), some(x))]


EXPECTED = everything()  # made at import, under the usual default


def test_float64_default_changes_nothing(double_default):
    for expected, got in zip(EXPECTED, everything(), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)


def test_network_without_hidden_units_is_linear():
    x = torch.randn(9, 5)
    population = Population([3, 1], 5, (), 2)
    for i in range(2):
        expected = x @ population.weights[0][i] + population.biases[0][i]
        assert torch.allclose(population(x)[i], expected, atol=1e-6)
        assert torch.allclose(Population([(3, 1)[i]], 5, (), 2)(x)[0], expected, atol=1e-6)
    some = population.select([1, 1, 0])
    assert torch.equal(some(x), population(x)[[1, 1, 0]])


@pytest.mark.parametrize("size", [10.5, 10.0, True, "64", None, float("nan"), torch.tensor(3)])
def test_layer_sizes_are_whole_numbers(size):
    for arguments in ((5, (size,), 2), (size, (4,), 2), (5, (4,), size)):
        with pytest.raises(hs.InputTypeError) as caught:
            Population([0], *arguments)
        assert repr(size) in caught.value.message


def test_sizes_may_be_numpys():
    population = Population([0], np.int64(5), np.array([7, 6]), np.uint8(2))
    assert population.sizes == (5, 7, 6, 2)
    assert all(type(size) is int for size in population.sizes)
    assert population(torch.zeros(3, 5)).shape == (1, 3, 2)


def test_settings_per_member_may_be_arrays():
    for weights in (np.array([0.1, 0.2]), torch.tensor([0.1, 0.2]), (0.1, 0.2)):
        population = Evidential(weights).build([0, 1], 5, 4, Network())
        assert population.evidence_weight.flatten().tolist() == pytest.approx([0.1, 0.2])
    population = Evidential(np.float32(0.5)).build(np.array([4, 2]), 5, 4, Network())
    assert population.seeds == (4, 2)
    assert population.evidence_weight.flatten().tolist() == [0.5, 0.5]
    with pytest.raises(hs.InputError, match="weight"):
        Evidential((0.1, 0.2, 0.3)).build([0, 1], 5, 4, Network())


def test_other_bad_populations_raise():
    with pytest.raises(hs.InputTypeError, match="hidden"):
        Population([0], 5, 64)
    with pytest.raises(hs.InputTypeError, match="seeds"):
        Population([1.5], 5)
    with pytest.raises(hs.InputTypeError, match="seeds"):
        Population(3, 5)
    with pytest.raises(hs.InputError, match="seeds"):
        Population([2**64], 5)
    population = Population([0, 1], 5)
    with pytest.raises(hs.InputTypeError, match=r"torch\.int64"):
        population(torch.zeros(3, 5, dtype=torch.int64))
    with pytest.raises(hs.InputTypeError, match="ndarray"):
        population(np.zeros((3, 5)))
