import pytest
import torch
from torch import nn

import evidentia as ev
from evidentia.nn import MLP, BayesPopulation, Population


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
    with pytest.raises(ev.InputError, match="unknown activation 'elu'; known are relu, silu, gelu, tanh"):
        Population([0], 5, activation="elu")
    with pytest.raises(ev.InputError, match="seeds is empty"):
        Population([], 5)
    with pytest.raises(ev.InputError, match="layer sizes must be at least 1"):
        MLP(5, (0,))
    with pytest.raises(ev.InputError, match=r"dropout must lie in \[0, 1\), got 1"):
        MLP(5, dropout=1.0)
    with pytest.raises(ev.InputError, match="dropout has 3 values for 2 members"):
        Population([0, 1], 5, dropout=(0.1, 0.2, 0.3))
    with pytest.raises(ev.InputError, match=r"shape \(2, N, 5\) or \(N, 5\), got \(3, 9, 5\)"):
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
