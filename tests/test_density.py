import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf

import howsure as hs
from howsure.nn import FeatureDensity


@pytest.fixture
def features():
    return torch.randn(60, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64) + 3


def by_scipy(x, mean, covariance):
    inverse = np.linalg.inv(covariance)
    return torch.tensor([mahalanobis(row, mean, inverse) for row in x.numpy()])


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_distances_against_scipy(features, shrinkage):
    x = 5 * torch.randn(20, 5, dtype=torch.float64)
    plain = np.cov(features.numpy(), rowvar=False, bias=True)
    covariance = (1 - shrinkage) * plain + shrinkage * np.trace(plain) / 5 * np.eye(5)
    expected = by_scipy(x, features.mean(0).numpy(), covariance)
    assert torch.allclose(FeatureDensity.fit(features, shrinkage)(x), expected, rtol=1e-8)


@pytest.mark.parametrize(("rows", "columns"), [(60, 5), (7, 20), (500, 1), (3, 4)])
def test_default_shrinkage_is_ledoit_and_wolfs(rows, columns):
    train = torch.randn(rows, columns, dtype=torch.float64) * torch.linspace(1, 3, columns)
    x = 5 * torch.randn(20, columns, dtype=torch.float64)
    fitted = LedoitWolf().fit(train.numpy())
    expected = by_scipy(x, fitted.location_, fitted.covariance_)
    assert torch.allclose(FeatureDensity.fit(train)(x), expected, rtol=1e-8)


def test_training_features_lie_at_a_mean_squared_distance_of_their_number(features):
    density = FeatureDensity.fit(features, shrinkage=0.0)
    assert torch.allclose(density(features).square().mean(), torch.tensor(5.0, dtype=torch.float64))
    assert density(features.mean(0)) < 1e-6


def test_rows_against_a_correlation_are_farther():
    shared = torch.randn(1000, 1)
    train = shared + 0.1 * torch.randn(1000, 2)
    density = FeatureDensity.fit(train)
    follows, breaks = density(torch.tensor([[2.0, 2.0], [1.0, -1.0]]))
    assert breaks > 3 * follows  # though nearer to the mean
    assert breaks > density(train).max()


def test_without_shrinkage_units_do_not_matter(features):
    x = 5 * torch.randn(20, 5, dtype=torch.float64)
    matrix, shift = torch.randn(5, 5, dtype=torch.float64) + 3 * torch.eye(5), torch.randn(5) * 100
    plain = FeatureDensity.fit(features, shrinkage=0.0)(x)
    mapped = FeatureDensity.fit(features @ matrix + shift, shrinkage=0.0)(x @ matrix + shift)
    assert torch.allclose(plain, mapped, rtol=1e-6)


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.1])
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (10, 40), (40, 40)])
def test_fewer_rows_than_columns(rows, columns, shrinkage):
    train = torch.randn(rows, columns)
    density = FeatureDensity.fit(train, shrinkage)
    inside, outside = density(train), density(train + 10 * torch.randn(columns))
    assert outside.isfinite().all()
    assert inside.max() < outside.min()


@pytest.mark.parametrize("shrinkage", [None, 0.0])
def test_constant_column_has_finite_informative_distances(shrinkage):
    train = torch.randn(100, 3)
    train[:, 1] = 0.1
    density = FeatureDensity.fit(train, shrinkage)
    moved = torch.tensor([0.0, 0.1, 0.0]) + torch.eye(3)[1]
    assert density(train).max() < 6
    assert density(moved).isfinite()
    assert density(moved) > density(train).max()


def test_shapes_and_dtypes(features):
    density = FeatureDensity.fit(features)
    assert density(features[0]).shape == ()
    assert density(features.view(3, 20, 5)).shape == (3, 20)
    assert torch.equal(density(features.view(3, 20, 5)).flatten(), density(features))
    assert density(features[:0]).shape == (0,)
    assert density.whiten.shape == (5, 5)
    for dtype, answer in ((torch.float64, torch.float64), (torch.float32,) * 2, (torch.bfloat16, torch.float32)):
        assert density(features.to(dtype)).dtype == answer
    expected = density(features)
    density.float()  # float64 is left alone by autocast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = density(features.float())
    assert mixed.dtype == torch.float32
    assert torch.allclose(mixed.double(), expected, rtol=1e-4)


def test_single_precision_is_enough_for_features_of_close_to_no_variance():
    train = torch.randn(2000, 3) * torch.tensor([1.0, 1e-2, 1e-3]) @ torch.linalg.qr(torch.randn(3, 3)).Q
    density = FeatureDensity.fit(train, shrinkage=0.0)
    assert torch.allclose(density(train).square().mean(), torch.tensor(3.0), rtol=1e-3)


def test_state_is_all_there_is(features):
    density = FeatureDensity.fit(features)
    assert list(density.state_dict()) == ["mean", "whiten"]
    assert not list(density.parameters())
    empty = FeatureDensity(5)
    assert empty(features).isnan().all()  # and not the distance of something never fitted
    empty.load_state_dict(density.state_dict())
    assert torch.equal(empty(features), density(features))


def test_distance_traces_and_has_a_gradient(features):
    density = FeatureDensity.fit(features.clone().requires_grad_())
    assert not density.whiten.requires_grad
    x = features[:3].clone().requires_grad_()
    compiled = torch.compile(density, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), density(x))
    assert torch.autograd.gradcheck(density, x)


def test_bad_features_are_named(features):
    for value in (torch.nan, torch.inf):
        bad = features.clone()
        bad[[7, 9], 2] = value
        with pytest.raises(hs.InputError) as caught:
            FeatureDensity.fit(bad)
        assert caught.value.row == 7
    for shape in ((1, 5), (0, 5), (5,), (6, 0), (2, 3, 4)):
        with pytest.raises(hs.InputError) as caught:
            FeatureDensity.fit(torch.ones(shape))
        assert str(shape) in caught.value.message
    with pytest.raises(hs.InputError, match=r"\b7\b"):
        FeatureDensity.fit(torch.full((7, 5), 0.1))
    for shrinkage in (-0.1, 1.1, torch.nan):
        with pytest.raises(hs.InputError, match="shrinkage") as caught:
            FeatureDensity.fit(features, shrinkage)
        assert caught.value.value is shrinkage
    with pytest.raises(hs.InputError, match="features"):
        FeatureDensity(0)
    with pytest.raises(hs.InputError, match=r"\(60, 4\)"):
        FeatureDensity.fit(features)(features[:, :4])
