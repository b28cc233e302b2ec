"""The comparison with other packages: their answers are read rightly, and their scores are those of scipy."""

import functools
import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from howsure.errors import InputError
from howsure.formulas import nig
from howsure.tables import splits

uci = pytest.importorskip("howsure_paper.datasets.uci", reason="benchmarks need howsure-paper")

ROOT = Path(__file__).parents[1]
QUICK = "--methods quantile,mapie" if importlib.util.find_spec("mapie") else "--methods quantile"


@pytest.fixture
def peers(monkeypatch):
    """The module, with a table of 60 rows in the place of each UCI set."""

    def small_table(name, data=None):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((60, 3))
        y = x[:, 0] + 0.1 * rng.standard_normal(60)
        return uci.UCITable(name, x, y, [splits.random(60, 0.1, seed) for seed in range(2)])

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(uci, "load", small_table)
    import peers

    return peers


@pytest.fixture
def benchmark(peers, monkeypatch, capsys, tmp_path):
    """A function that runs the script with --peers and returns what it prints and its record."""

    monkeypatch.setattr(peers, "LEVELS", (0.05, 0.5, 0.95))  # three fits instead of nineteen

    def run(arguments):
        script = ROOT / "benchmarks" / "bench_tables.py"
        monkeypatch.setattr(sys, "argv", [str(script), "--peers", "--out", str(tmp_path / "out"), *arguments.split()])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out, json.loads((tmp_path / "out" / "record.json").read_text())

    return run


def noisy_table(rows=400, seed=0):
    """Rows whose noise is 0.2 for negative x and 1 for positive x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, 2))
    return x, 10 + 3 * x[:, 0] + np.where(x[:, 0] < 0, 0.2, 1.0) * rng.standard_normal(rows)


def crps_by_quadrature(truth, y):
    """∫ (F(t) − 1[t ≥ y])² dt."""
    low, high = truth.mean() - 40 * truth.std(), truth.mean() + 40 * truth.std()
    below = integrate.quad(lambda t: truth.cdf(t) ** 2, low, y, limit=200)[0]
    return below + integrate.quad(lambda t: truth.sf(t) ** 2, y, high, limit=200)[0]


def test_ngboost_has_the_density_of_its_own_distribution(peers, monkeypatch):
    ngboost = pytest.importorskip("ngboost")
    few = functools.partial(ngboost.NGBRegressor, n_estimators=20)
    monkeypatch.setattr(ngboost, "NGBRegressor", few)
    x, y = noisy_table(100)
    answer = peers.METHODS["ngboost"].fit(x, y, 0)(x)
    own = few(random_state=0, verbose=False).fit(x, y).pred_dist(x)
    assert peers.scores_of(answer, y)["nll"] == pytest.approx(-own.logpdf(y).mean())
    np.testing.assert_allclose(answer.interval(0.9), np.transpose(own.interval(0.9)), rtol=1e-6)


def test_gaussian_process_counts_the_noise(peers):
    """Mean and deviation are those of textbook formulas with the kernel that scikit-learn finds."""
    x, y = noisy_table(60)
    x *= [1, 100]
    new = np.array([[0.5, -30.0], [9.0, 900.0]])
    answer = peers.METHODS["gp"].fit(x, y, 0)(new)
    scaled, z = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    kernel = kernels.ConstantKernel() * kernels.RBF(np.ones(2)) + kernels.WhiteKernel()
    found = GaussianProcessRegressor(kernel).fit(scaled, z).kernel_
    signal, lengths, noise = found.k1.k1.constant_value, found.k1.k2.length_scale, found.k2.noise_level

    def covariance(a, b):
        return signal * np.exp(-0.5 * (((a[:, None] - b) / lengths) ** 2).sum(-1))

    at = (new - x.mean(0)) / x.std(0)
    weights = np.linalg.solve(covariance(scaled, scaled) + noise * np.eye(60), covariance(scaled, at))
    variance = signal + noise - (covariance(scaled, at) * weights).sum(0)
    np.testing.assert_allclose(answer.mean, y.mean() + y.std() * (z @ weights), rtol=1e-5)
    np.testing.assert_allclose(answer.std, y.std() * np.sqrt(variance), rtol=1e-5)


def test_quantile_trees_are_fitted_to_their_levels(peers, monkeypatch):
    monkeypatch.setattr(peers, "LEVELS", (0.05, 0.5, 0.95))
    x, y = noisy_table(100)
    answer = peers.METHODS["quantile"].fit(x, y, 0)(x)
    for column, level in enumerate(answer.levels):
        alone = HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=0).fit(x, y)
        np.testing.assert_array_equal(answer.values[:, column], alone.predict(x))
    np.testing.assert_array_equal(answer.point, answer.values[:, 1])


def test_mapie_returns_its_intervals(peers):
    regression = pytest.importorskip("mapie.regression")
    x, y = noisy_table(200)
    new, target = noisy_table(450, seed=1)  # more than one part
    answer = peers.METHODS["mapie"].fit(x, y, 0)(new)
    own = regression.CrossConformalRegressor(HistGradientBoostingRegressor(random_state=0), random_state=0)
    point, ends = own.fit_conformalize(x, y).predict_interval(new)
    np.testing.assert_array_equal(answer.point, point)
    np.testing.assert_array_equal(answer.values, ends[:, :, 0])
    scores = peers.scores_of(answer, target)
    assert scores["nll"] is scores["crps"] is None
    assert scores["coverage"] >= 0.8 - 5 * np.sqrt(0.16 / 450)  # what CV+ guarantees for 90 %, and five standard errors


def test_catboost_returns_variances(peers, monkeypatch):
    """Its documentation says deviations; the second number of its raw output is the logarithm of one."""
    catboost = pytest.importorskip("catboost")
    few = functools.partial(catboost.CatBoostRegressor, iterations=50)
    monkeypatch.setattr(catboost, "CatBoostRegressor", few)
    x, y = noisy_table(200)
    answer = peers.METHODS["catboost"].fit(x, 10 * y, 0)(x)  # far from 1, where both are the same
    quiet = {"verbose": False, "allow_writing_files": False, "thread_count": 1}
    model = few(loss_function="RMSEWithUncertainty", random_seed=0, **quiet).fit(x, 10 * y)
    mean, log_std = model.predict(x, prediction_type="RawFormulaVal").T
    np.testing.assert_allclose(answer.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(answer.std, np.exp(log_std), rtol=1e-6)
    assert np.median(answer.std) > 1


def test_normal_distributions_have_the_scores_of_scipy(peers):
    mean, std, y = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 3.0]), np.array([0.3, 2.5, -2.0])
    scores = peers.scores_of(peers.normal(mean, std), y)
    truth = stats.norm(mean, std)
    assert scores["nll"] == pytest.approx(-truth.logpdf(y).mean())
    crps = [crps_by_quadrature(stats.norm(m, s), at) for m, s, at in zip(mean, std, y, strict=True)]
    assert scores["crps"] == pytest.approx(np.mean(crps), rel=1e-6)
    low, high = truth.interval(0.9)
    assert scores["interval_width"] == pytest.approx(np.mean(high - low))
    assert scores["coverage"] == pytest.approx(np.mean((low <= y) & (y <= high)))
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    assert scores["interval_score"] == pytest.approx(np.mean(high - low + 20 * outside))


def test_quantiles_have_the_scores_of_scipy(peers):
    """19 quantiles of a gamma distribution: the CRPS is that of the integral, but for what the grid leaves out."""
    truth = stats.gamma(3.0)
    y = truth.rvs(4000, random_state=np.random.default_rng(0))
    values = np.tile(truth.ppf(peers.LEVELS), (len(y), 1))
    answer = peers.Quantiles(peers.LEVELS, values, np.full(len(y), truth.median()))
    scores = peers.scores_of(answer, y)
    exact = np.mean([crps_by_quadrature(truth, at) for at in y[:20]])
    first = peers.scores_of(peers.Quantiles(peers.LEVELS, values[:20], answer.point[:20]), y[:20])
    assert first["crps"] == pytest.approx(exact, rel=0.01)
    assert scores["nll"] is None
    assert scores["coverage"] == pytest.approx(0.9, abs=5 * np.sqrt(0.09 / len(y)))
    assert scores["interval_width"] == pytest.approx(np.diff(truth.interval(0.9))[0])
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - truth.median()) ** 2)))


@pytest.mark.parametrize("kind", ["norm", "laplace", "expon", "uniform", "t"])
def test_grid_gives_the_crps_of_calibrated_distributions(kind, peers):
    """That is half the mean distance of two draws, ½E|X−X'| = E[X(2F(X) − 1)]."""
    truth = stats.t(3) if kind == "t" else getattr(stats, kind)()
    level = (np.arange(20_000) + 0.5) / 20_000
    y = truth.ppf(level)
    values = np.tile(truth.ppf(peers.LEVELS), (len(y), 1))
    crps = peers.scores_of(peers.Quantiles(peers.LEVELS, values, np.zeros(len(y))), y)["crps"]
    assert crps == pytest.approx(np.mean(y * (2 * level - 1)), rel=0.002)


def test_grid_is_exact_for_a_point_mass(peers):
    answer = peers.Quantiles(peers.LEVELS, np.full((3, 19), 5.0), np.full(3, 5.0))
    assert peers.scores_of(answer, np.array([4.0, 5.0, 7.0]))["crps"] == pytest.approx(1.0)  # mean absolute error


def test_quantiles_that_cross_are_sorted(peers):
    levels = (0.05, 0.5, 0.95)
    crossed = peers.Quantiles(levels, np.array([[2.0, 0.0, -2.0]]), np.zeros(1))
    straight = peers.Quantiles(levels, np.array([[-2.0, 0.0, 2.0]]), np.zeros(1))
    assert peers.scores_of(crossed, np.ones(1)) == peers.scores_of(straight, np.ones(1))


def test_run_continues_and_is_shown(benchmark, peers, monkeypatch):
    benchmark(f"--sets yacht,yacht --splits 1 {QUICK}")
    _, first = benchmark(f"--sets yacht --splits 1 {QUICK}")  # a second time: nothing to do
    assert len(first["rows"]) == len(QUICK.split(","))
    text, whole = benchmark(f"--sets yacht {QUICK}")
    assert whole["rows"][: len(first["rows"])] == first["rows"]
    assert [(row["split"], row["method"]) for row in whole["rows"]] == [
        (split, name) for split in (0, 1) for name in QUICK.split()[1].split(",")
    ]
    assert "EvidentialRegressor" in text.splitlines()[-1]
    monkeypatch.setattr(uci, "load", None)
    assert benchmark("--show --sets yacht") == (text[text.index("quantile trees:") :], whole)
    with pytest.raises(SystemExit, match="'mars'"):
        benchmark("--show --sets mars")


def test_summary_compares_splits_that_both_have(peers, capsys):
    def row(name, split, method, nll, crps):
        scores = {"rmse": 1.0, "coverage": 0.9, "interval_width": 1.0, "interval_score": 1.0, "seconds": 2.0}
        return {"set": name, "split": split, "method": method, "nll": nll, "crps": crps, **scores}

    rows = [
        *(row("boston", k, "evidential", 1.0 + k, 0.5) for k in range(3)),
        row("boston", 0, "gp", 1.2, 0.4),  # its other splits, where ours is worse, are not there
        row("boston", 0, "mapie", None, None),
        row("wine", 0, "evidential", -9.0, 0.3),
        row("wine", 0, "ngboost", 1.0, 0.4),
        row("yacht", 0, "evidential", 1.0, 0.3),
        row("yacht", 0, "catboost", None, 0.4),  # an NLL that is not finite
        row("yacht", 0, "ngboost", 0.9, 0.4),
        row("energy", 0, "ngboost", 0.9, 0.4),  # where ours was not run
    ]
    record = {"rows": rows, "methods": {}, "not_run": {"gp": {"wine": "too many rows"}}, "times": {}}
    peers.print_tables(record, ["boston", "wine", "yacht", "energy"], list(peers.METHODS))
    text = capsys.readouterr().out
    nll, crps = text.splitlines()[-2:]
    assert re.search(r"\bNLL .*\b1 of 2\b", nll)  # boston; not yacht, and wine has no densities
    assert re.search(r"\bCRPS .*\b2 of 3\b", crps)
    assert "| boston | −0.2000 | Gaussian process | 0.1000 | Gaussian process |" in text
    assert "| wine | – | – | −0.1000 | NGBoost |" in text
    assert re.search(r"Gaussian process: .*\(too many rows\)", text)  # the reason of the record


def test_ours_is_compared_with_the_others(benchmark, peers, monkeypatch):
    quick = functools.partial(peers.EvidentialRegressor, steps=20, members=2, evidence="plain")
    monkeypatch.setattr(peers, "EvidentialRegressor", quick)
    text, record = benchmark("--sets boston,wine --splits 1 --methods quantile,gp,evidential")
    (ours,) = (row for row in record["rows"] if (row["set"], row["method"]) == ("boston", "evidential"))
    table = uci.load("boston")
    train, test = table.splits[0]
    model = quick(random_state=0).fit(table.x[train], table.y[train])
    lower, upper = model.predict_interval(table.x[test], coverage=0.9).T
    inside = (lower <= table.y[test]) & (table.y[test] <= upper)
    assert ours["coverage"] == pytest.approx(inside.mean())
    assert ours["interval_width"] == pytest.approx((upper - lower).mean())
    assert ours["rmse"] == pytest.approx(np.sqrt(np.mean((model.predict(table.x[test]) - table.y[test]) ** 2)))
    assert ", steps=20," in record["methods"]["evidential"]
    assert re.search(r"\bNLL .*\b0 of 1\b", text.splitlines()[-2])  # after 20 steps
    assert re.search(r"\bCRPS .*\b0 of 2\b", text.splitlines()[-1])
    (line,) = (line for line in text.splitlines() if line.startswith("| wine |"))
    assert line.startswith("| wine | – | – | ")


def test_other_settings_are_not_mixed(benchmark, peers, monkeypatch):
    benchmark("--sets yacht --splits 1 --methods quantile")
    monkeypatch.setattr(peers, "versions", lambda methods: dict.fromkeys(methods, "something else"))
    with pytest.raises(SystemExit, match="--again"):
        benchmark("--sets yacht --methods quantile")
    _, record = benchmark("--sets yacht --methods quantile --splits 1 --again quantile")
    assert record["methods"]["quantile"] == "something else"
    assert len(record["rows"]) == 1


def test_method_for_few_rows_is_not_run_on_many(benchmark, peers, monkeypatch):
    large = uci.load("yacht")
    x, y = np.tile(large.x, (40, 1)), np.tile(large.y, 40)
    monkeypatch.setattr(uci, "load", lambda *_: uci.UCITable("yacht", x, y, [splits.random(2400, 0.1, 0)]))
    text, record = benchmark("--sets yacht --methods gp")
    assert record["rows"] == []
    assert re.findall(r"[\d,]*\d", record["not_run"]["gp"]["yacht"]) == ["2,160", "2,000"]
    assert "EvidentialRegressor" in text.splitlines()[-1]


def test_times_are_kept_and_shown_in_the_place_of_shared_ones(benchmark):
    benchmark("--sets yacht --splits 1 --methods quantile")
    _, record = benchmark("--time --sets yacht --methods quantile")
    assert record["times"]["yacht"]["quantile"]["rows"] == 54
    assert len(record["rows"]) == 1
    text, _ = benchmark("--show --sets yacht")
    (line,) = (line for line in text.splitlines() if line.startswith("| quantile trees"))
    assert f"| {record['times']['yacht']['quantile']['seconds']:.1f} |" in line


@pytest.mark.parametrize("option", ["--show", "--time --methods quantile", "--methods quantile"])
def test_damaged_record_raises_and_kept(option, benchmark, tmp_path):
    damaged = '{"schema": 1, "run": "bench_tables", "rows": 3}'
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "record.json").write_text(damaged)
    with pytest.raises(SystemExit):
        benchmark(f"--sets yacht {option}")
    assert (tmp_path / "out" / "record.json").read_text() == damaged


def test_missing_package_is_named_before_anything_runs(peers, monkeypatch, tmp_path):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--methods"):
        peers.compare(tmp_path / "out", None, ["yacht"], ["ngboost"])
    assert not (tmp_path / "out").exists()


def test_losses_of_other_packages_are_as_written_out(monkeypatch):
    """Each is the paper's loss, or in one case a shorter one, and the package's own where that is installed."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import loss_peers

    torch.manual_seed(0)
    raw, y, weight = torch.randn(200, 4, dtype=torch.float64), torch.randn(200, dtype=torch.float64), 0.3
    gamma, nu, a, beta = (t.numpy() for t in nig.from_raw(raw))
    student = stats.t(2 + 2 * a, gamma, np.sqrt(beta * (1 + nu) / (nu * (1 + a))))
    error = np.abs(y.numpy() - gamma)
    paper = np.mean(weight * error * (2 * nu + 1 + a) - student.logpdf(y.numpy()))
    short = np.mean(np.log(beta / nu) + (1 + weight * nu) * error**2 * nu / beta)
    written = {
        loss_peers.naive: paper,
        loss_peers._edl_pytorch_written_out: paper,
        loss_peers._torch_uncertainty_written_out: paper,
        loss_peers._uq_box_written_out: short,
    }
    for loss, truth in written.items():
        assert float(loss(raw, y, weight)) == pytest.approx(truth, rel=1e-4)
    if importlib.util.find_spec("edl_pytorch"):
        own = loss_peers._edl_pytorch(raw, y, weight)
        assert float(own) == pytest.approx(float(loss_peers._edl_pytorch_written_out(raw, y, weight)), rel=1e-12)
        assert "edl-pytorch" in loss_peers.peers()
