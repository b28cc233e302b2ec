import inspect

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import howsure as hs
from howsure import metrics
from howsure.distributions import Transform
from howsure.formulas import normal, student_t
from howsure.prediction import Prediction, quantities


def evidential(members=3, shape=(5,)):
    g = torch.Generator().manual_seed(2)
    return hs.NormalInverseGamma.from_raw(torch.randn(members, *shape, 4, generator=g))


def ensemble(members=3, shape=(5,)):
    g = torch.Generator().manual_seed(2)
    return hs.Normal(torch.randn(members, *shape, generator=g), torch.rand(members, *shape, generator=g) + 0.2)


def members_of(p, row):
    """scipy's version of the members of one row."""
    m = p.distribution.components
    if isinstance(m, hs.Normal):
        return [stats.norm(m.loc[k, row].item(), m.scale[k, row].item()) for k in range(len(m.loc))]
    return [stats.t(m.df[k, row].item(), m.loc[k, row].item(), m.scale[k, row].item()) for k in range(len(m.loc))]


def mixture_cdf(p, row, x):
    return np.mean([d.cdf(x) for d in members_of(p, row)])


def mixture_density(p, row, x):
    return np.mean([d.pdf(x) for d in members_of(p, row)])


# Decompositions -----------------------------------------------------------------------------------------------------


def test_one_network_by_the_papers_formula():
    nig = evidential(1)
    p = Prediction(nig, members=0)
    aleatoric, epistemic = p.decompose("paper")
    assert np.allclose(aleatoric, nig.aleatoric_variance[0])
    assert np.allclose(epistemic, nig.epistemic_variance[0])
    assert np.allclose(p.variance, aleatoric + epistemic)
    assert p.default_decomposition == "paper"
    assert np.allclose(p.mean, nig.gamma[0])


def test_one_network_has_no_identified_epistemic_part():
    p = Prediction(evidential(1), members=0)
    assert np.allclose(p.decompose("identified").aleatoric, p.variance)
    assert p.decompose("identified").epistemic is None


def test_several_networks():
    nig = evidential(4)
    p = Prediction(nig, members=0)
    identified, paper = p.decompose("identified"), p.decompose("paper")
    assert p.default_decomposition == "identified"
    assert np.allclose(identified.aleatoric, nig.predictive_variance.mean(0))
    assert np.allclose(identified.epistemic, nig.gamma.var(0, correction=0))
    assert np.allclose(paper.aleatoric, nig.aleatoric_variance.mean(0))
    # whatever the reading, the total is the same
    assert np.allclose(identified.aleatoric + identified.epistemic, p.variance)
    assert np.allclose(paper.aleatoric + paper.epistemic, p.variance)
    assert np.allclose(p.aleatoric_std**2 + p.epistemic_std**2, p.variance)


def test_single_normal_has_no_epistemic_part():
    p = Prediction(ensemble(1), members=0)
    assert p.epistemic_std is None
    assert np.allclose(p.aleatoric_std, p.std)
    assert Prediction(ensemble(3), members=0).epistemic_std.min() > 0


# Familiarity --------------------------------------------------------------------------------------------------------


def with_familiarity(members=3, rows=5):
    shares = torch.rand(members, rows, generator=torch.Generator().manual_seed(3))
    return Prediction(evidential(members, (rows,)), members=0, familiarity=shares), shares


def test_familiarity_is_the_mean_over_members():
    p, shares = with_familiarity()
    assert p.familiarity == pytest.approx(shares.mean(0).numpy())
    assert p.default_decomposition == "paper"
    assert p.epistemic_std**2 == pytest.approx(p.decompose("paper").epistemic, rel=1e-6)
    assert p.to_frame()["familiarity"].to_numpy() == pytest.approx(p.familiarity)
    assert Prediction(evidential(), members=0).familiarity is None


def test_std_is_that_of_the_distribution_with_familiarity():
    p, _ = with_familiarity()
    assert p.std**2 == pytest.approx(p.distribution.variance.numpy(), rel=1e-5)
    assert p.aleatoric_std**2 + p.epistemic_std**2 == pytest.approx(p.variance, rel=1e-5)


def test_rows_keep_their_familiarity():
    p, _ = with_familiarity()
    for key in (2, slice(1, 4), [3, 0], np.array([True, False, True, False, True])):
        assert np.array_equal(p[key].familiarity, p.familiarity[key])
    joined = Prediction.cat([p[:2], p[2:]])
    assert np.array_equal(joined.familiarity, p.familiarity)
    assert np.array_equal(p.scaled(2.0).familiarity, p.familiarity)
    assert p.to(torch.float64).familiarity.dtype == np.float64


def test_familiarity_of_another_shape_or_of_some_predictions_raises():
    p, _ = with_familiarity()
    for shape in ((4,), (2, 5), (5, 3)):
        with pytest.raises(hs.InputError):
            Prediction(evidential(), members=0, familiarity=torch.rand(shape))
    with pytest.raises(hs.InputError):
        Prediction.cat([p, Prediction(evidential(), members=0)])


# Quantities ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [evidential(), ensemble(), evidential(1), ensemble(1), evidential(2, (5, 3))])
def test_shapes_and_kinds(answer):
    p = Prediction(answer, members=0)
    shape = tuple(answer.batch_shape[1:])
    assert p.shape == shape
    assert len(p) == 5
    y = np.zeros(shape)
    for value in (p.mean, p.std, p.log_prob(y), p.density(y), p.cdf(y), p.entropy(), p.crps(y), p.quantile(0.3)):
        assert isinstance(value, np.ndarray)
        assert value.shape == shape
    assert p.interval(0.9).shape == (*shape, 2)
    assert p.quantile([0.1, 0.5, 0.9]).shape == (*shape, 3)
    assert (np.diff(p.quantile([0.1, 0.5, 0.9]), axis=-1) > 0).all()


@pytest.mark.parametrize("answer", [evidential(), ensemble()])
def test_tails_quantiles_and_intervals_agree_with_scipy(answer):
    p = Prediction(answer, members=0)
    ends = p.interval(0.8)
    for row in range(5):
        assert p.cdf(np.full(5, 0.7))[row] == pytest.approx(mixture_cdf(p, row, 0.7))
        assert mixture_cdf(p, row, ends[row, 0]) == pytest.approx(0.1)
        assert mixture_cdf(p, row, ends[row, 1]) == pytest.approx(0.9)
        assert mixture_cdf(p, row, p.quantile(0.25)[row]) == pytest.approx(0.25)


@pytest.mark.parametrize("answer", [evidential(), ensemble(), evidential(1)])
def test_entropy_and_crps_of_mixtures_against_quadrature(answer):
    p = Prediction(answer, members=0)
    y = np.array([-2.0, 0.0, 0.3, 1.0, 5.0])
    for row in range(3):

        def surprise(w, row=row):
            d = mixture_density(p, row, np.sinh(w))
            return -d * np.log(d) * np.cosh(w) if d > 0 else 0.0

        entropy = integrate.quad(surprise, -25, 25, limit=500, epsabs=1e-9, points=[-1, 0, 1])[0]
        assert p.entropy()[row] == pytest.approx(entropy, abs=1e-5)
        w0 = np.arcsinh(y[row])
        below = integrate.quad(
            lambda w, row=row: mixture_cdf(p, row, np.sinh(w)) ** 2 * np.cosh(w), -20, w0, limit=300
        )[0]
        above = integrate.quad(
            lambda w, row=row: (1 - mixture_cdf(p, row, np.sinh(w))) ** 2 * np.cosh(w), w0, 20, limit=300
        )[0]
        assert p.crps(y)[row] == pytest.approx(below + above, rel=1e-4)


def test_half_the_mean_distance_of_two_draws():
    g = np.random.default_rng(0)
    a, b = g.standard_t(5.0, 400_000), g.standard_t(5.0, 400_000)
    assert student_t.half_spread(torch.tensor(5.0), torch.tensor(2.0)).item() == pytest.approx(
        np.abs(a - b).mean(), rel=5e-3
    )
    assert normal.half_spread(torch.tensor(2.0)).item() == pytest.approx(2 / np.pi**0.5)


def test_frames():
    p = Prediction(evidential(), members=0)
    p.index = np.array(list("abcde"))
    frame = p.to_frame(0.8)
    assert list(frame.columns) == ["mean", "std", "aleatoric_std", "epistemic_std", "lower_0.8", "upper_0.8"]
    assert list(frame.index) == list("abcde")
    assert np.allclose(frame["upper_0.8"], p.interval(0.8)[:, 1])
    assert "epistemic_std" not in Prediction(ensemble(1), members=0).to_frame().columns
    wide = Prediction(evidential(2, (5, 2)), members=0).to_frame()
    assert list(wide.columns)[:2] == ["y0_mean", "y0_std"]
    assert wide.shape == (5, 12)


def test_bad_input_is_named():
    p = Prediction(evidential(), members=0)
    with pytest.raises(hs.InputError, match=r"\by\b"):
        p.log_prob(np.zeros(4))
    with pytest.raises(hs.InputError, match="coverage"):
        p.interval(90)
    with pytest.raises(hs.InputError, match=r"\[0\.5, 2\]"):
        p.quantile([0.5, 2])
    with pytest.raises(hs.InputError, match="'total'"):
        p.decompose("total")
    for shape, members in (((), 0), ((2, 5), 2), ((2, 5), -3), ((0, 5), 0)):
        with pytest.raises(hs.InputError, match="members="):
            Prediction(hs.Normal(torch.zeros(shape), 1.0), members)
    with pytest.raises(hs.InputError, match=r"torch\.distributions\.Laplace"):
        Prediction(torch.distributions.Laplace(0.0, 1.0))


def test_members_must_be_given():
    head = hs.NIGHead(8, targets=3)
    answer = head(torch.randn(300, 8, generator=torch.Generator().manual_seed(0)))
    p = Prediction(answer)
    assert p.shape == (300, 3)
    assert p.mean == pytest.approx(answer.prediction.detach().double().numpy())
    assert p.variance == pytest.approx(answer.predictive_variance.detach().double().numpy(), rel=1e-5)
    assert p.decompose().epistemic == pytest.approx(answer.epistemic_variance.detach().double().numpy(), rel=1e-5)
    for dim in (1, -1):
        turned = Prediction(answer, members=dim)  # as if the three targets were three networks
        assert turned.shape == (300,)
        assert turned.mean == pytest.approx(p.mean.mean(1))
    assert Prediction(evidential(4, (5, 2)), members=0).shape == (5, 2)


def test_series_of_pandas_is_scored_without_a_warning():
    import pandas as pd

    p = Prediction(evidential(), members=0)
    y = pd.Series(np.arange(5.0), index=list("abcde"))
    assert metrics.nll(p, y) == metrics.nll(p, y.to_numpy())
    assert metrics.rmse(p, y) == metrics.rmse(p, list(y))
    y["b"] = np.nan
    with pytest.raises(hs.InputError, match=r"\by\b"):
        metrics.nll(p, y)


def test_other_values_than_real_numbers_raise():
    import pandas as pd

    p = Prediction(evidential(), members=0)
    y = np.arange(5.0)
    masked = np.ma.array(y, mask=[0, 1, 0, 0, 0])
    with pytest.raises(hs.InputError, match=r"\by\b"):
        metrics.rmse(p, masked)
    with pytest.raises(hs.InputError, match=r"\by\b"):
        metrics.rmse(p, pd.Series([0.0, 1.0, pd.NA, 3.0, 4.0], dtype=object))
    for wrong in (pd.date_range("2020", periods=5), y * 1j, list("abcde"), pd.to_timedelta(y, "s")):
        with pytest.raises(hs.InputTypeError, match=r"\by\b"):
            metrics.rmse(p, wrong)
    with pytest.raises(hs.InputError, match="NaN"):
        metrics.auroc(np.ma.array([1, 2.0, 9999], mask=[0, 0, 1]), [3.0, 4])
    assert metrics.rmse(p, torch.tensor(y, requires_grad=True)) == metrics.rmse(p, y)


def test_levels_names_and_dimensions_are_checked():
    p, y = Prediction(evidential(), members=0), np.arange(5.0)
    for level in (90, np.nan, -0.1, 1.5):
        with pytest.raises(hs.InputError, match="coverage"):
            metrics.coverage(p, y, level)
    for q in ([], [[0.1, 0.2]], np.nan):
        with pytest.raises(hs.InputError) as caught:
            p.quantile(q)
        assert repr(q) in caught.value.message
    for quantiles in ([], [2.0]):
        with pytest.raises(hs.InputError, match="quantiles"):
            metrics.calibration_error(p, y, quantiles)
    for coverage in ("a", None, np.array([0.1, 0.2])):
        with pytest.raises(hs.InputError, match="coverage"):
            p.interval(coverage)
    for members in (True, 0.0, "0"):
        with pytest.raises(hs.InputTypeError, match="members"):
            Prediction(evidential(), members)


def test_no_rows_have_a_prediction_and_no_score():
    p = Prediction(evidential(3, (0,)), members=0)
    assert p.mean.shape == p.entropy().shape == p.crps([]).shape == p.quantile(0.5).shape == (0,)
    assert p.interval().shape == (0, 2)
    assert len(p.to_frame()) == 0
    for score in (metrics.nll, metrics.rmse, metrics.crps, metrics.coverage, metrics.calibration_error):
        with pytest.raises(hs.InputError):
            score(p, [])


# Any shape, on any device -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (4,), (4, 2), (4, 3, 5), (2, 3, 4, 5)])
def test_any_shape_of_one_network_or_several(shape):
    for answer in (evidential(3, shape), ensemble(3, shape), evidential(3, shape).predictive()):
        several = Prediction(answer, members=0)
        one = Prediction(torch.utils._pytree.tree_map(lambda p: p[0], answer))
        for p, members in ((several, 3), (one, 1)):
            assert (p.shape, p.members) == (shape, members)
            assert p.mean.shape == p.std.shape == p.quantile(0.2).shape == p.entropy().shape == shape
            assert p.interval(0.9).shape == (*shape, 2)
            assert p.quantile([0.05, 0.95]) == pytest.approx(p.interval(0.9), rel=1e-5)
            assert np.isfinite(p.log_prob(np.zeros(shape))).all()
        assert several.mean == pytest.approx(answer.predictive().mean.mean(0).numpy(), rel=1e-6)


def test_single_student_t_has_no_decomposition():
    t = evidential(3).predictive()
    p = Prediction(torch.utils._pytree.tree_map(lambda p: p[0], t))
    assert (p.aleatoric_std, p.epistemic_std) == (None, None)
    assert p.std == pytest.approx(t.variance[0].sqrt().numpy())
    assert Prediction(t, members=0).decompose().epistemic == pytest.approx(t.loc.var(0, correction=0).numpy(), rel=1e-4)
    assert list(p.to_frame().columns) == ["mean", "std", "lower_0.9", "upper_0.9"]


def test_it_stays_in_its_dtype_and_keeps_the_graph():
    raw = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    answer = hs.NormalInverseGamma.from_raw(raw)
    p = Prediction(answer, members=0)
    assert p.mean.dtype == p.std.dtype == p.interval().dtype == np.float32
    p.distribution.mean.sum().backward()
    assert raw.grad is not None
    assert not p.detach().answers.gamma.requires_grad
    wide = p.to(torch.float64)
    assert wide.mean.dtype == np.float64
    assert wide.mean == pytest.approx(p.mean)
    assert (p.cpu().shape, p.answers.gamma.dtype) == ((5,), torch.float32)
    with pytest.raises(hs.InputTypeError):
        p.to(torch.bfloat16)


def test_rows_targets_and_pixels_are_indexed_as_arrays_are():
    import pandas as pd

    p = Prediction(evidential(3, (6, 4)), members=0)
    p.index, p.names = pd.Index(list("abcdef")), ["w", "x", "y", "z"]
    keys = (
        2,
        -1,
        slice(1, 5, 2),
        slice(None, None, -1),
        [],
        [4, 0, 0],
        np.array([True, False] * 3),
        (slice(None), 1),
        (slice(2), [3, 1]),
        (1, 2),
    )
    for key in keys:
        some = p[key]
        assert some.mean == pytest.approx(p.mean[key])
        assert some.interval(0.5) == pytest.approx(p.interval(0.5)[key])
        assert some.members == 3
    assert list(p[[4, 0]].to_frame().index) == ["e", "a"]
    assert p[:, [3, 1]].to_frame().columns[0] == "z_mean"
    assert p[torch.tensor([1, 2])].shape == (2, 4)
    assert (p[:, 1].names, list(p[1:, 1].index)) == (None, list("bcdef"))
    assert [len(row) for row in p] == [4] * 6
    for key in (6, None, ..., (0, 0, 0)):
        with pytest.raises(IndexError):
            p[key]
    with pytest.raises(TypeError):
        len(p[0, 0])


def test_predictions_are_joined_row_after_row():
    import pandas as pd

    p = Prediction(evidential(3, (7, 2)), members=0)
    p.index = pd.RangeIndex(7)
    joined = Prediction.cat([p[:3], p[3:4], p[4:]])
    assert joined.mean == pytest.approx(p.mean)
    assert list(joined.index) == list(range(7))
    for other in (evidential(2, (7, 2)), ensemble(3, (7, 2)), evidential(3, (7, 3))):
        with pytest.raises(hs.InputError, match=r"shape=\(7, 2\)"):
            Prediction.cat([p, Prediction(other, members=0)])
    for nothing in ([], [p[0, 0]]):
        with pytest.raises(hs.InputError, match=r"\bcat\b"):
            Prediction.cat(nothing)


def test_mixture_is_a_prediction_of_its_members():
    p = Prediction(ensemble(3), members=0)
    again = Prediction(p.distribution)
    assert (again.shape, again.members) == ((5,), 3)
    assert again.interval() == pytest.approx(p.interval())
    with pytest.raises(hs.InputError, match="members="):
        Prediction(p.distribution, members=0)


def test_rows_are_worked_on_in_parts_without_a_change(monkeypatch):
    p = Prediction(evidential(3, (50, 2)), members=0)
    y = np.linspace(-2, 2, 100).reshape(50, 2)
    whole = [p.mean, p.std, p.interval(0.8), p.log_prob(y), p.crps(y), p.entropy(), p.decompose("paper").epistemic]
    monkeypatch.setattr("howsure.prediction.state.PART", 60)
    q = Prediction(p.answers, members=0)
    assert [len(part) for part in q._parts()] == [10] * 5
    parts = [q.mean, q.std, q.interval(0.8), q.log_prob(y), q.crps(y), q.entropy(), q.decompose("paper").epistemic]
    assert all(a == pytest.approx(b, rel=1e-5, abs=1e-6) for a, b in zip(whole, parts, strict=True))


# At hand ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [evidential(), ensemble(), evidential().predictive(), evidential(1)])
def test_draws_come_from_the_mixture(answer):
    p = Prediction(answer, members=0)
    draws = p.sample(2000, seed=3)
    assert draws.shape == (2000, 5)
    assert draws.dtype == p.mean.dtype
    for row in range(5):
        each = members_of(p, row)
        found = stats.kstest(draws[:, row], lambda x, each=each: np.mean([d.cdf(x) for d in each], axis=0))
        assert found.pvalue > 1e-3
    uniform = p.cdf(draws[0])
    assert ((uniform > 0) & (uniform < 1)).all()
    correlation = np.corrcoef(np.argsort(np.argsort(draws, 0), 0), rowvar=False)  # of ranks: tails may be heavy
    assert np.abs(correlation - np.eye(5)).max() < 0.1


def test_draws_follow_from_their_seed_and_leave_torch_alone(monkeypatch):
    p = Prediction(evidential(3, (50, 2)), members=0)
    before = torch.get_rng_state()
    first = p.sample(7, seed=0)
    assert np.array_equal(first, p.sample(7, seed=np.int64(0)))
    assert not np.array_equal(first, p.sample(7, seed=1))
    assert not np.array_equal(p.sample(7), p.sample(7))
    assert torch.equal(before, torch.get_rng_state())
    monkeypatch.setattr("howsure.prediction.state.PART", 60)
    assert len(list(p._parts())) == 5
    parts = p.sample(7, seed=0)
    assert parts.shape == (7, 50, 2)
    assert np.isfinite(parts).all()
    assert len(np.unique(parts)) == parts.size


def test_draws_of_one_value_of_maps_and_of_nothing():
    assert Prediction(evidential(3, ()), members=0).sample(4).shape == (4,)
    assert Prediction(evidential(2, (3, 4, 5)), members=0).sample(2).shape == (2, 3, 4, 5)
    assert Prediction(evidential(2, (0,)), members=0).sample(2).shape == (2, 0)
    assert Prediction(evidential(2, (3,)), members=0).to(torch.float64).sample(1).dtype == np.float64
    p = Prediction(evidential(), members=0)
    for n in (0, 1.5, True, "3"):
        with pytest.raises(hs.InputError, match=r"\bn\b"):
            p.sample(n)
    for seed in (-1, 0.5, "a", True):
        with pytest.raises(hs.InputError, match="seed"):
            p.sample(1, seed=seed)


def test_median_is_the_quantile_of_one_half():
    p = Prediction(evidential(3, (5, 2)), members=0)
    assert np.array_equal(p.median, p.quantile(0.5))
    assert p.cdf(p.median) == pytest.approx(0.5, abs=1e-5)


def test_table_of_several_intervals():
    p = Prediction(evidential(3, (6,)), members=0)
    frame = p.to_frame([0.5, 0.9])
    ends = ["lower_0.5", "upper_0.5", "lower_0.9", "upper_0.9"]
    assert list(frame.columns) == ["mean", "std", "aleatoric_std", "epistemic_std", *ends]
    assert np.array_equal(frame[ends].to_numpy(), np.hstack([p.interval(0.5), p.interval(0.9)]))
    assert p.to_frame((0.9,)).equals(p.to_frame())
    assert p.to_frame(np.array([0.9])).equals(p.to_frame(0.9))
    wide = Prediction(evidential(3, (6, 2)), members=0).to_frame([0.8, 0.5])
    assert list(wide.columns[4:8]) == ["y0_lower_0.8", "y0_upper_0.8", "y0_lower_0.5", "y0_upper_0.5"]
    for wrong in (1.5, [0.5, 0.0], "0.9", None, [0.5, "a"]):
        with pytest.raises(hs.InputError, match="coverage"):
            p.to_frame(wrong)
    for wrong in ([], [0.5, 0.5]):
        with pytest.raises(hs.InputError):
            p.to_frame(wrong)


def test_one_row_is_a_prediction_too():
    import pandas as pd

    p = Prediction(evidential(3, (6,)), members=0)
    p.index = pd.Index(list("abcdef"))
    row = p[2]
    assert repr(row) == "Prediction(shape=(), members=3)"
    assert (row.mean.shape, row.median.shape, row.interval().shape) == ((), (), (2,))
    assert row.to_frame().equals(p.to_frame().iloc[[2]])
    assert p[-1].to_frame([0.5, 0.9]).equals(p.to_frame([0.5, 0.9]).iloc[[5]])
    assert float(row.crps(0.3)) == row.crps(np.float64(0.3)) > 0
    targets = Prediction(evidential(3, (6, 2)), members=0)
    targets.names, targets.index = ["price", "days"], p.index
    assert list(targets[3].to_frame().index) == ["price", "days"]
    assert np.array_equal(targets[3].to_frame()["mean"], targets.mean[3])
    assert list(targets[3, 1].to_frame().index) == ["d"]
    assert len(Prediction(evidential(3, ()), members=0).to_frame(0.5)) == 1


# Metrics ------------------------------------------------------------------------------------------------------------


KINDS = ["float64", "float32", "Float64", "Int64", "double[pyarrow]", "int64[pyarrow]", object]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_series_is_scored_without_a_warning(kind):
    import pandas as pd

    p = Prediction(evidential(), members=0)
    values = np.arange(5.0)
    values.flags.writeable = False
    y = pd.Series(values, copy=False) if kind == "float64" else pd.Series(values).astype(kind)
    for targets in (y, y.to_frame("y")):
        for name in (name for name in metrics.__all__ if name not in ("auroc", "summary", "summary_of_targets")):
            metric = getattr(metrics, name)
            assert np.array(metric(p, targets)) == pytest.approx(np.array(metric(p, values)), rel=1e-6)
        assert metrics.summary(p, targets) == pytest.approx(metrics.summary(p, values), rel=1e-6)
        for quantity in (p.log_prob, p.density, p.cdf, p.crps):
            assert quantity(targets) == pytest.approx(quantity(values), rel=1e-6)
    gaps = y.astype("float64" if kind in ("float64", "float32") else kind)
    gaps[1] = None
    known = gaps.notna()
    for mask in (known, known.astype("boolean"), known.astype("bool[pyarrow]"), known.to_frame()):
        assert metrics.nll(p, gaps, mask=mask) == pytest.approx(metrics.nll(p[[0, 2, 3, 4]], values[[0, 2, 3, 4]]))


def test_summary_has_the_values_of_its_metrics():
    p = Prediction(evidential(3, (40, 2)), members=0)
    y = p.sample(1, seed=0)[0]
    known = np.arange(80).reshape(40, 2) % 3 > 0
    for mask in (None, known):
        found = metrics.summary(p, np.where(known, y, np.nan) if mask is not None else y, coverage=0.8, mask=mask)
        assert list(found) == ["rmse", "mae", "nll", "crps", "coverage", "interval_width", "calibration_error"]
        for name in ("rmse", "mae", "nll", "crps", "calibration_error"):
            assert found[name] == getattr(metrics, name)(p, y, mask=mask)
        assert found["coverage"] == metrics.coverage(p, y, 0.8, mask=mask)
        width = np.diff(p.interval(0.8), axis=-1)[..., 0]
        assert found["interval_width"] == pytest.approx(width[known if mask is not None else ...].mean())
        assert all(type(value) is float for value in found.values())
    for wrong in (0.0, 1.0, 90, "a"):
        with pytest.raises(hs.InputError, match="coverage"):
            metrics.summary(p, y, coverage=wrong)
    with pytest.raises(hs.InputError):
        metrics.summary(p, np.where(known, y, np.nan))
    with pytest.raises(hs.InputError):
        metrics.summary(p, y, mask=known & False)


@pytest.mark.parametrize("make", [evidential, ensemble, lambda *a: evidential(*a).predictive()])
def test_metrics_take_distributions_tensors_and_masks(make):
    answer = torch.utils._pytree.tree_map(lambda p: p[0], make(1, (6, 3)))
    p = Prediction(answer)
    y = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    known = torch.rand(6, 3, generator=torch.Generator().manual_seed(2)) < 0.6
    gaps = torch.where(known, y, torch.nan)
    kept = Prediction(torch.utils._pytree.tree_map(lambda t: t[known], answer))
    scores = (metrics.nll, metrics.rmse, metrics.mae, metrics.crps, metrics.interval_score, metrics.coverage)
    for score in (*scores, metrics.calibration_error, metrics.ause, metrics.aurg):
        wide = score(p.to(torch.float64), y)
        assert score(answer, y) == score(p, y.numpy()) == pytest.approx(wide, rel=1e-4, abs=1e-9)
        masked = score(answer, gaps, mask=known)
        assert masked == score(p, gaps.numpy(), mask=known.numpy()) == pytest.approx(score(kept, y[known]), rel=1e-6)
        with pytest.raises(hs.InputError, match="mask="):
            score(p, gaps)
        with pytest.raises(hs.InputError):
            score(p, gaps, mask=known & False)
    for wrong in (known[0], known.float(), np.array([[None, True, False]] * 6)):
        with pytest.raises(hs.InputError, match="mask"):
            metrics.nll(p, y, mask=wrong)
    assert metrics.pit(p, gaps, mask=known).shape == (int(known.sum()),)


@pytest.fixture(scope="module")
def right():
    """A prediction that is right by construction: y is drawn from the mixture it states."""
    torch.manual_seed(0)
    p = Prediction(evidential(3, (1500,)), members=0)
    return p, p.distribution.sample().numpy()


def test_scores_of_one_normal_by_hand():
    p = Prediction(hs.Normal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])))
    y = np.array([0.5, 4.0])
    assert metrics.rmse(p, y) == pytest.approx(np.sqrt((0.25 + 9) / 2))
    assert metrics.nll(p, y) == pytest.approx(-stats.norm.logpdf(y, [0, 1], [1, 2]).mean())
    low, high = stats.norm.interval(0.9, [0, 1], [1, 2])
    assert metrics.interval_score(p, y, 0.9) == pytest.approx(np.mean(high - low + 20 * np.maximum(y - high, 0)))
    z = (y - [0, 1]) / [1, 2]
    crps = np.array([1, 2]) * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5)
    assert metrics.crps(p, y) == pytest.approx(crps.mean(), rel=1e-6)


@pytest.mark.parametrize("kind", ["positive", "log"])
def test_target_that_cannot_be_negative_is_scored_and_drawn(kind):
    """Under "positive" zero has a probability of its own here: almost half of the draws."""
    answer = evidential(3, (1500,)).affine(-0.5, 1.0)
    transform = Transform("log") if kind == "log" else Transform("positive", scale=1.0, shift=0.4)
    p = Prediction(answer, members=0, transform=transform)
    y = p.sample(1, seed=0)[0]
    assert (y >= 0).all()
    assert np.array_equal(
        y, transform.forward(torch.from_numpy(Prediction(answer, members=0).sample(1, seed=0)[0])).float()
    )
    found = metrics.summary(p, y)
    ends = p.interval(0.9)
    assert found["coverage"] == np.mean((y >= ends[:, 0]) & (y <= ends[:, 1]))
    assert found["calibration_error"] < 0.02
    assert {name for name, value in found.items() if np.isnan(value)} == (
        {"rmse", "mae", "crps"} if kind == "log" else set()
    )
    if kind == "positive":
        assert 0.3 < np.mean(y == 0) < 0.6
        zero = p[[0]]
        mass = float(zero.cdf([0.0])[0])
        levels = np.array([0.25, 0.5, 0.75, 1.0])
        assert metrics.calibration_curve(zero, [0.0], levels * mass) == pytest.approx(levels, rel=1e-6)
    counts = np.histogram(quantities.randomised_pit(p, y)[2], bins=20, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert ("median" in p.to_frame()) == (kind == "log")


def test_right_prediction_is_calibrated(right):
    p, y = right
    n = len(y)
    assert stats.kstest(metrics.pit(p, y), "uniform").pvalue > 1e-3
    for level in (0.5, 0.9, 0.99):
        assert abs(metrics.coverage(p, y, level) - level) < 4 * (level * (1 - level) / n) ** 0.5
    assert metrics.calibration_error(p, y) < 0.02
    assert metrics.nll(p, y) == pytest.approx(p.entropy().mean(), abs=0.1)


def test_coverage_counts_targets_in_the_interval(right):
    p, y = right
    ends = p.interval(0.7)
    assert metrics.coverage(p, y, 0.7) == np.mean((y >= ends[:, 0]) & (y <= ends[:, 1]))
    levels = np.array([0.1, 0.8])
    assert metrics.calibration_curve(p, y, levels) == pytest.approx([np.mean(y <= p.quantile(q)) for q in levels])


def test_wrong_prediction_scores_worse(right):
    p, y = right
    for wrong in (p.answers.affine(1.0, 1.0), p.answers.affine(0.0, 3.0)):
        other = Prediction(wrong, members=0)
        for score in (metrics.nll, metrics.crps, metrics.interval_score, metrics.calibration_error):
            assert score(other, y) > score(p, y), score.__name__


def test_every_metric_documents_arguments_results_and_an_example():
    for name in metrics.__all__:
        metric = getattr(metrics, name)
        text = metric.__doc__
        arguments, returned = text.split("    Args:\n")[1].split("    Returns:\n")
        assert text.startswith("Return ")
        assert ">>> " in returned
        for parameter in inspect.signature(metric).parameters:
            assert f"        {parameter}: " in arguments
