import math

import numpy as np
import pytest
import torch
from scipy import stats

from howsure.incontext import model, prior, regressions, train

CPU = torch.device("cpu")
FAMILIES = {getattr(f, "__name__", "foreign"): f for f in (*prior.TRAINING, *prior.FOREIGN)}


def small_network() -> model.Network:
    """A network whose zero weights are replaced, so that every part has an effect."""
    torch.manual_seed(1)
    network = model.Network(width=32, layers=2, heads=2, cell_width=32, points=4)
    with torch.no_grad():
        for p in network.parameters():
            if p.ndim == 2:
                p.normal_(0, 0.3 / math.sqrt(p.shape[1]))
    return network.eval()


def table(rows=60, columns=4, seed=0):
    torch.manual_seed(seed)
    return prior.simulate(2, rows, columns, CPU)


def mixture(shape=(3, 5), seed=0):
    torch.manual_seed(seed)
    parts = [torch.randn(*shape, model.COMPONENTS, dtype=torch.float64) for _ in range(5)]
    return model.Posterior(parts[0].log_softmax(-1), parts[1], parts[2], 1 + parts[3].exp(), parts[4])


# --- simulator


@pytest.mark.parametrize("columns", [1, 7, 60])
def test_tables_have_shapes_and_finite_labels(columns):
    torch.manual_seed(0)
    drawn = prior.simulate(20, 64, columns, CPU)
    assert drawn.x.shape == (20, 64, columns)
    assert all(part.shape == (20, 64) and part.isfinite().all() for part in drawn[1:])
    assert (drawn.variance > 0).all()
    assert not drawn.x.isinf().any()


def test_some_cells_are_missing():
    torch.manual_seed(0)
    missing = prior.simulate(200, 32, 8, CPU).x.isnan().float().mean()
    assert 0.002 < missing < 0.1


@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_finite(name):
    torch.manual_seed(0)
    drawn = prior.simulate(32, 64, 5, CPU, [FAMILIES[name]])
    assert all(part.isfinite().all() for part in drawn[1:])


def test_standardised_errors_are_standard_normal_without_rounding(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "round", lambda self: self)  # y and its steps
    torch.manual_seed(0)
    drawn = prior.simulate(400, 128, 3, CPU)
    variance = drawn.variance
    z = (drawn.y - drawn.mean) / variance.sqrt()
    inside = z.std(1)
    usual = inside > 0.9  # the other tables have the variance of rounding in their labels
    assert usual.float().mean() > 0.75
    assert stats.kstest(z[usual][:, :16].flatten().numpy(), "norm").statistic < 0.02


def test_variance_of_standardised_errors_is_one():
    torch.manual_seed(0)
    drawn = prior.simulate(400, 128, 3, CPU)
    z = (drawn.y - drawn.mean) / drawn.variance.sqrt()
    assert z.square().mean() == pytest.approx(1, abs=0.03)


# --- experts


def test_inverse_root_inverts():
    torch.manual_seed(0)
    a = torch.randn(2, 150, 200, dtype=torch.float64)
    a = a @ a.mT + torch.eye(150, dtype=torch.float64)
    root = regressions._inverse_root(a)
    assert torch.allclose(root.mT @ root @ a, torch.eye(150, dtype=torch.float64).expand(2, -1, -1), atol=1e-8)
    assert (root.triu(1) == 0).all()


def test_leave_one_out_predictions_are_predictions_without_the_row():
    torch.manual_seed(0)
    x, y = torch.randn(1, 30, 2, dtype=torch.float64), torch.randn(1, 30, dtype=torch.float64)
    experts, mean, variance = regressions.fit_experts(x, y, 256)
    t, kept = (y - experts.centre) / experts.spread, torch.arange(30) != 4
    for kind in range(regressions.EXPERTS):
        a = experts.inputs[kind]
        k = regressions._similarity(kind, a, a, experts.lengths[kind])[0][0]
        inner = k[kept][:, kept] + experts.ridges[kind][0] * torch.eye(29, dtype=torch.float64)
        row = k[4, kept]
        assert mean[0, 4, kind] == pytest.approx(float(row @ torch.linalg.solve(inner, t[0, kept])), abs=1e-6)
        left = k[4, 4] + experts.ridges[kind][0, 0] - row @ torch.linalg.solve(inner, row)
        assert variance[0, 4, kind] == pytest.approx(float(left), rel=1e-5)


def test_linear_table_without_noise_has_a_small_unit():
    torch.manual_seed(0)
    x = torch.randn(1, 80, 3, dtype=torch.float64)
    experts, _, _ = regressions.fit_experts(x, x.sum(2), 256)
    assert experts.unit.item() < 1e-5


def test_values_are_ranked_and_missing_cells_are_zero():
    x = torch.tensor([[[1.0], [2.0], [2.0], [torch.nan], [9.0]]], dtype=torch.float64)
    z, place = regressions.Columns.fit(x).scaled(x)
    assert place[0, :, 0].tolist() == [-0.75, 0.0, 0.0, 0.0, 0.75]
    assert z[0, 3, 0] == 0


# --- network


def test_keys_in_memory_give_the_full_forward():
    network, drawn = small_network(), table()
    context = network.fit(drawn.x[:, :40], drawn.y[:, :40], views=2)
    found = network.predict(context, drawn.x[:, 40:])
    encoded, experts, base = model.encode(drawn.x[:, :40], drawn.y[:, :40], drawn.x[:, 40:])
    with torch.no_grad():
        whole, _ = network(encoded, context.codes[::2], 40)
    unit = (experts.unit * experts.spread)[..., None]
    loc = experts.centre[..., None] + experts.spread[..., None] * base[:, 40:, None] + unit * whole.loc
    first = model.COMPONENTS  # components of the first view
    assert whole.alpha.std() > 0.01
    assert torch.allclose((found.loc[..., :first] - loc) / unit, torch.zeros(()).double(), atol=1e-4)
    assert torch.allclose(found.alpha[..., :first].float(), whole.alpha, rtol=1e-4)
    assert torch.allclose(found.log_weight.exp().sum(-1), torch.ones(()).double())


def test_order_of_context_rows_does_not_matter():
    network, drawn = small_network(), table()
    order = torch.randperm(40)
    x, y, query = drawn.x[:, :40], drawn.y[:, :40], drawn.x[:, 40:]
    first = network.predict(network.fit(x, y, views=1), query)
    second = network.predict(network.fit(x[:, order], y[:, order], views=1), query)
    for a, b in zip(first, second, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_query_rows_do_not_see_each_other():
    network, drawn = small_network(), table()
    context = network.fit(drawn.x[:, :40], drawn.y[:, :40], views=1)
    whole = network.predict(context, drawn.x[:, 40:])
    alone = network.predict(context, drawn.x[:, 45:46])
    for a, b in zip(whole, alone, strict=True):
        assert torch.allclose(a[:, 5:6], b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("factor", [1e-6, -3.0, 1e9])
def test_predictions_follow_the_units_of_the_target(factor):
    network, drawn = small_network(), table()
    x, y, query = drawn.x[:, :40], drawn.y[:, :40].double(), drawn.x[:, 40:]
    plain = network.predict(network.fit(x, y, views=2), query)
    scaled = network.predict(network.fit(x, factor * y + 7 * factor, views=2), query)
    mean = [(p.log_weight.exp() * p.loc).sum(-1) for p in (plain, scaled)]
    assert torch.allclose(mean[0], mean[1] / factor - 7, atol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 60), (70, 1)])
def test_extreme_sizes_give_finite_numbers(rows, columns):
    network = small_network()
    x = torch.randn(1, rows, columns)
    for y in (torch.randn(1, rows), torch.full((1, rows), 3.0)):
        found = network.predict(network.fit(x, y), torch.randn(1, 4, columns))
        assert all(part.isfinite().all() for part in found)


# --- loss


def test_log_posterior_against_scipy():
    p = mixture()
    mean, variance = torch.randn(3, 5).double(), torch.rand(3, 5).double() + 0.1
    w, loc, nu, alpha, beta = (v.numpy() for v in (p.log_weight.exp(), p.loc, p.log_nu.exp(), p.alpha, p.beta))
    m, v = mean.numpy()[..., None], variance.numpy()[..., None]
    density = w * stats.norm.pdf(m, loc, np.sqrt(v / nu)) * stats.invgamma.pdf(v, alpha, scale=beta)
    assert np.allclose(model.log_posterior(p, mean, variance), np.log(density.sum(-1)))


def test_log_predictive_against_scipy():
    p, y = mixture(), torch.randn(3, 5).double()
    w, loc, nu, alpha, beta = (v.numpy() for v in (p.log_weight.exp(), p.loc, p.log_nu.exp(), p.alpha, p.beta))
    scale = np.sqrt(beta / alpha * (1 + 1 / nu))
    density = w * stats.t.pdf(y.numpy()[..., None], 2 * alpha, loc, scale)
    assert np.allclose(model.log_predictive(p, y), np.log(density.sum(-1)))


def test_predictive_loss_is_an_expectation():
    p = mixture((1, 1))
    p = p._replace(log_scale=p.log_scale + 2)  # smooth over the width of the label
    mean, variance = torch.tensor([[0.3]]).double(), torch.tensor([[0.5]]).double()
    _, found, _ = model.loss(p, mean, variance)
    y = torch.from_numpy(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, 0.3, math.sqrt(0.5)))
    exact = -torch.stack([model.log_predictive(p, v.view(1, 1)) for v in y[::20]]).mean()
    assert found.item() == pytest.approx(exact.item(), abs=2e-3)


def test_moments_against_samples():
    p = mixture()
    p = p._replace(alpha=p.alpha + 2)
    torch.manual_seed(0)
    mean, spread, noise = p.moments()
    mu, variance = model.sampled(p, 200_000)
    assert torch.allclose(mu.mean(-1), mean, atol=0.05)
    assert torch.allclose(mu.var(-1), spread, rtol=0.05)
    assert torch.allclose(variance.mean(-1), noise, rtol=0.05)


def test_score_of_moments_is_greatest_at_the_moments_of_the_labels():
    p = mixture((1, 1))
    p = p._replace(alpha=p.alpha + 3, log_nu=p.log_nu + 2)
    torch.manual_seed(0)
    labels = [v.flatten()[:, None] for v in model.sampled(p, 100_000)]
    best = model.log_moments(p, *labels).mean().item()
    for part in ("log_scale", "log_nu", "loc"):
        for step in (-0.3, 0.3):
            moved = p._replace(**{part: getattr(p, part) + step})
            assert model.log_moments(moved, *labels).mean().item() < best


def test_loss_of_an_excluded_row_is_bounded_and_has_finite_gradients():
    parts = [v.float().requires_grad_() for v in mixture((1, 1))]
    found = torch.stack(model.loss(model.Posterior(*parts), torch.tensor([[1e4]]), torch.tensor([[0.0]])))
    found.sum().backward()
    assert (found[:2] < 100).all()
    assert found[2] < 2000
    assert all(v.grad.isfinite().all() for v in parts)


# --- training


def test_orthogonal_has_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(train.orthogonal(torch.randn(2, 32, 64)).float())
    assert ((values > 0.5) & (values < 1.5)).all()


def test_shapes_stay_within_the_budget():
    shapes = train.draw_shapes(0)
    assert all(s.tables * s.rows <= train.ROWS_PER_STEP and s.context < s.rows for s in shapes)
    assert min(s.columns for s in shapes) <= 2
    assert max(s.columns for s in shapes) <= 60


def trainer(seed=0):
    torch.manual_seed(seed)
    return train.Trainer(model.Network(width=32, layers=1, heads=2, cell_width=32, cell_layers=1, points=4), CPU)


def test_training_lowers_the_loss():
    found = trainer()
    torch.manual_seed(3)
    batch = train.draw_batch(train.Shape(4, 32, 2, 24), CPU)
    before = train.score(found.network, [batch])
    losses = torch.stack([found.step(batch, 5.0).sum() for _ in range(16)])
    assert losses[-4:].mean() < losses[:4].mean() - 0.1
    assert train.score(found.network, [batch])["posterior"] < before["posterior"]


def test_training_resumes_to_the_same_numbers(tmp_path):
    shapes = [train.Shape(3, 32, 2, 24)]
    first = trainer()
    for (_, batch), _ in zip(train.batches(shapes, 0, CPU), range(3), strict=False):
        first.step(batch, 1.0)
    first.save(tmp_path)
    numbers = []
    for seed in (1, 2):
        found = trainer(seed)
        found.load(tmp_path)
        assert found.history["steps"] == 3
        assert all(torch.equal(a, b) for a, b in zip(found.parameters, first.parameters, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(found.average, first.average, strict=True))
        for (_, batch), _ in zip(train.batches(shapes, 5, CPU), range(2), strict=False):
            last = found.step(batch, 1.0)
        numbers.append(last)
    assert torch.equal(*numbers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_captured_graph_has_the_gradients_of_the_network():
    torch.manual_seed(0)
    found = train.Trainer(model.Network(width=64, layers=2, heads=2, cell_width=32, points=8), torch.device("cuda"))
    batch = train.draw_batch(train.Shape(8, 96, 4, 64), torch.device("cuda"))
    views = train._views(batch)
    parts = found.differentiate(batch, *views)
    expected = torch.cat([g.flatten() for g in found.gradients])
    again = train.Graph(found, batch, torch.cuda.graph_pool_handle()).replay(batch, *views)
    gradient = torch.cat([g.flatten() for g in found.gradients])
    assert torch.allclose(again, parts, atol=0.02, rtol=0.02)
    assert (gradient - expected).norm() < 0.2 * expected.norm()


def test_training_starts_from_exported_weights(tmp_path):
    first = trainer(1)
    train.export(first.network, first.history, tmp_path / "weights.safetensors")
    second = trainer(2)
    second.start(tmp_path / "weights.safetensors")
    assert second.history["before"]["steps"] == 0
    for a, b, c in zip(first.parameters, second.parameters, second.average, strict=True):
        assert torch.equal(a.half().float(), b)
        assert torch.equal(b, c)


def test_exported_weights_load(tmp_path):
    from safetensors import safe_open

    found = trainer()
    train.export(found.network, found.history, tmp_path / "weights.safetensors")
    with safe_open(tmp_path / "weights.safetensors", "pt") as file:
        card, names = file.metadata(), list(file.keys())
    assert card["training data"] == '"simulated tables only"'
    assert set(names) == {name for name, _ in found.network.named_parameters()}
