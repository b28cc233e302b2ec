"""Steps in one kernel, here in Triton's interpreter, against autograd and torch's Adam in float64."""

import importlib.util
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from howsure_paper.small_networks import Likelihood, Rows, run_steps

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # NumPy's, of lanes that nobody reads

device = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, HIDDEN, MEMBERS = 30, 12, 2
BEFORE = 10  # steps that were taken before


# The reference --------------------------------------------------------------------------------------------------------


def nig_loss(out, y, weight):
    """Return the paper's Eq. 8 and the penalty of its Eq. 9 from raw outputs (…, 4), as textbooks have them."""
    gamma, raw_nu, raw_alpha, raw_beta = out.unbind(-1)
    nu, beta = softplus(raw_nu, threshold=40) + 1e-6, softplus(raw_beta, threshold=40) + 1e-9
    alpha = 1 + softplus(raw_alpha, threshold=40) + 1e-6
    omega = 2 * beta * (1 + nu)
    nll = 0.5 * torch.log(math.pi / nu) - alpha * omega.log() + (alpha + 0.5) * ((y - gamma) ** 2 * nu + omega).log()
    penalty = (y - gamma).abs() * (2 * nu + alpha)
    return nll + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5) + weight * penalty, penalty


def normal_loss(out, y):
    return -Normal(out[..., 0], softplus(out[..., 1], threshold=40) + 1e-6, validate_args=False).log_prob(y)


class Reference:
    """One member, step by step in float64."""

    def __init__(self, problem, member):
        self.problem, self.member, self.sizes = problem, member, problem.sizes
        f, h, o = self.sizes
        shapes = [(f, h), (h, o), (1, h), (1, o)] * (2 if problem.bayes else 1)
        parts = problem.state[0, member].double().cpu().split([math.prod(s) for s in shapes])
        self.leaves = [p.view(s).clone().requires_grad_() for p, s in zip(parts, shapes, strict=True)]
        self.optimizer = torch.optim.Adam(self.leaves)
        moments = [t.double().cpu().split([p.numel() for p in self.leaves]) for t in problem.state[1:, member]]
        for leaf, first, second in zip(self.leaves, *moments, strict=True):
            self.optimizer.state[leaf] = {
                "step": torch.tensor(float(BEFORE)),
                "exp_avg": first.view_as(leaf).clone(),
                "exp_avg_sq": second.view_as(leaf).clone(),
            }
        self.weight = float(problem.weight[member])

    def layer(self, x, k, noise):
        w, b = self.leaves[k], self.leaves[2 + k]
        out = x @ w + b
        if self.problem.bayes:
            of_weights, of_biases = softplus(self.leaves[4 + k]), softplus(self.leaves[6 + k])
            out = out + (x.square() @ of_weights.square() + of_biases.square()).sqrt() * noise
        return out

    def divergence(self):
        total, prior = 0.0, float(self.problem.prior_std[self.member])
        inputs = (self.sizes[0], self.sizes[1], 1, 1)
        for mean, raw, size in zip(self.leaves[:4], self.leaves[4:], inputs, strict=True):
            total = total + kl_divergence(Normal(mean, softplus(raw)), Normal(0.0, prior / size**0.5)).sum()
        return total

    def step(self, k, rate):
        problem, me = self.problem, self.member
        chosen = problem.rows.chosen[me, k].cpu()
        x, y, *scaling = (t.double().cpu() for t in (problem.rows.x, problem.rows.y[:, 0], *problem.rows[3:]))
        loc_x, scale_x, loc_y, scale_y = (t[me] for t in scaling)
        noise = None if problem.noise is None else problem.noise[me, k].double().cpu()
        first, last = noise.split(self.sizes[1:], 1) if problem.bayes else (None, None)
        hidden = self.layer((x[chosen] - loc_x) / scale_x, 0, first).relu()
        if problem.keep is not None:
            keep = float(problem.keep[me])
            hidden = hidden * (noise < keep) / keep
        out, targets = self.layer(hidden, 1, last), (y[chosen] - loc_y) / scale_y
        if problem.evidential:
            each, penalty = nig_loss(out, targets, self.weight)
            self.weight += problem.ascent * (float(penalty.detach().mean()) - problem.aim)
        else:
            each = normal_loss(out, targets)
        loss = each.mean()
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        (loss + float(problem.complexity[me]) * self.divergence() if problem.bayes else loss).backward()
        self.optimizer.step()
        return float(loss.detach())

    def state(self):
        moments = [self.optimizer.state[p] for p in self.leaves]
        triples = (self.leaves, [m["exp_avg"] for m in moments], [m["exp_avg_sq"] for m in moments])
        return torch.stack([torch.cat([t.detach().flatten() for t in ts]) for ts in triples])


class Problem:
    """Random networks, rows and noise. ``kind`` is a key of ``KINDS``."""

    def __init__(self, kind, inputs, batch, steps, hidden=HIDDEN, rows=ROWS):
        g = torch.Generator().manual_seed(1000 * inputs + batch)

        def normal(*shape):
            return torch.randn(*shape, generator=g).to(device)

        self.evidential, self.dropout, self.bayes, self.ascent, self.aim = KINDS[kind]
        self.sizes = inputs, hidden, 4 if self.evidential else 2
        outputs = self.sizes[2]
        count = inputs * hidden + hidden * outputs + hidden + outputs
        self.state = torch.zeros(3, MEMBERS, count * (2 if self.bayes else 1), device=device)
        self.state[0] = 0.3 * normal(*self.state.shape[1:])
        self.state[0, :, count:] -= 2
        # as steps before left them: a first step of Adam would divide gradients that are almost 0 by themselves
        self.state[1] = 0.1 * normal(*self.state.shape[1:])
        self.state[2] = 0.01 * (0.5 + torch.rand(self.state.shape[1:], generator=g)).to(device)
        chosen = torch.randint(rows, (MEMBERS, steps, batch), generator=g).to(device)
        loc, scale = 0.5 * normal(MEMBERS, inputs), 1.5 + normal(MEMBERS, inputs).tanh()
        y_scaling = 0.3 * normal(MEMBERS), torch.tensor([0.7, 2.0], device=device)
        self.rows = Rows(normal(rows, inputs), normal(rows, 1), chosen, loc, scale, *y_scaling)
        self.weight = torch.tensor([0.0, 0.3], device=device)
        self.keep = self.noise = self.prior_std = self.complexity = None
        if self.dropout:
            self.keep = torch.tensor([0.9, 0.6], device=device)
            self.noise = torch.rand(MEMBERS, steps, batch, hidden, generator=g).to(device)
        if self.bayes:
            self.prior_std, self.complexity = (torch.tensor(v, device=device) for v in ([1.0, 3.0], [0.02, 0.001]))
            self.noise = normal(MEMBERS, steps, batch, hidden + outputs)

    def run(self, rates):
        """Take the steps in the kernel, and return the last losses."""
        step = BEFORE + 1 + torch.arange(len(rates), dtype=torch.float64)
        corrected, roots = rates / (1 - 0.9**step), (1 - 0.999**step).rsqrt()
        return run_steps(
            self.state,
            self.sizes,
            self.rows,
            Likelihood(self.evidential, self.weight, self.ascent, self.aim),
            corrected.float().to(device),
            roots.float().to(device),
            keep=self.keep,
            prior_std=self.prior_std,
            complexity=self.complexity,
            noise=self.noise,
        )


# evidential, dropout, Bayes by backprop, ascent of λ and its aim
KINDS = {
    "evidential": (True, False, False, 0.0, 0.0),
    "ascent": (True, False, False, 0.05, 0.01),
    "gaussian": (False, False, False, 0.0, 0.0),
    "dropout": (False, True, False, 0.0, 0.0),
    "evidential dropout": (True, True, False, 0.0, 0.0),
    "bayes": (False, False, True, 0.0, 0.0),
    "evidential bayes": (True, False, True, 0.0, 0.0),
}


def check(problem, steps):
    rates = torch.linspace(0.05, 0.02, steps, dtype=torch.float64)
    references = [Reference(problem, k) for k in range(MEMBERS)]
    start = problem.state[0].clone()
    losses = problem.run(rates)
    expected = [[r.step(k, float(rates[k])) for k in range(steps)][-1] for r in references]
    assert losses.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert problem.weight.tolist() == pytest.approx([r.weight for r in references], rel=1e-5)
    assert (problem.state[0] - start).abs().max() > 0.01
    for k, reference in enumerate(references):
        found, truth = problem.state[:, k].double().cpu(), reference.state()
        assert (found[0] - truth[0]).abs().max() < 1e-5
        for moment in (1, 2):
            assert (found[moment] - truth[moment]).abs().max() < 3e-5 * truth[moment].abs().max()


# Tests ----------------------------------------------------------------------------------------------------------------

BATCHES = (1, 3, 16, 40, 64, 100)  # row by row, a whole tile, a tile with rows to spare, two tiles
CASES = [
    *itertools.product(("evidential", "gaussian", "bayes"), (1, 5, 17), BATCHES),
    *itertools.product(("ascent", "dropout"), (5,), BATCHES),
    *itertools.product(("evidential dropout", "evidential bayes"), (3,), (2, 20)),
]


@pytest.mark.parametrize(("kind", "inputs", "batch"), CASES)
def test_steps_are_those_of_autograd_and_adam(kind, inputs, batch):
    check(Problem(kind, inputs, batch, steps=2), steps=2)


@pytest.mark.parametrize("hidden", [50, 100])  # with more units the tiles have fewer rows
@pytest.mark.parametrize("kind", ["evidential", "bayes"])
def test_more_units(kind, hidden):
    check(Problem(kind, 2, 70, steps=1, hidden=hidden), steps=1)


def one_step_gradients(raw, batch, evidential):
    """Return the gradients by raw outputs (M, O), which are biases of networks without weights, after one step."""
    members, outputs = raw.shape
    state = torch.zeros(3, members, 16 + 16 * outputs + 16 + outputs, device=device)
    state[0, :, -outputs:] = raw
    one = torch.ones(members, device=device)
    y = torch.ones(1, 1, device=device)
    chosen = torch.zeros(members, 1, batch, dtype=torch.int64, device=device)
    rows = Rows(y, y, chosen, 0 * one[:, None], one[:, None], 0 * one, one)
    run_steps(state, (1, 16, outputs), rows, Likelihood(evidential, 0.1 * one), 0 * one[:1], one[:1])
    # Adam's first moment after one step from zero is a tenth of the gradient
    return 10 * state[1, :, -outputs:].double().cpu()


@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("evidential", [True, False])
def test_gradients_are_exact_at_the_edges(evidential, batch):
    edges = (-30.0, -12.0, 0.0, 30.0, 1e4)
    if evidential:
        mixed = itertools.product((-30.0, 0.0, 1e4), repeat=3)
        raw = torch.tensor([(0.3, *each) for each in [*zip(edges, edges, edges, strict=True), *mixed]])
    else:
        raw = torch.tensor([(0.3, each) for each in edges])
    leaf = raw.double().requires_grad_()
    y = torch.ones(len(raw), dtype=torch.float64)
    loss = nig_loss(leaf, y, 0.1)[0] if evidential else normal_loss(leaf, y)
    (exact,) = torch.autograd.grad(loss.sum(), leaf)
    assert torch.allclose(one_step_gradients(raw, batch, evidential), exact, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 40])
def test_rows_outside_the_batch_are_not_read(batch):
    """Row 0, which is in no batch, would leave NaN in every gradient that it is multiplied with."""
    problem = Problem("evidential", 5, batch, steps=1)
    problem.rows.chosen.clamp_(min=1)
    problem.rows.x[0], problem.rows.y[0] = torch.nan, torch.inf
    check(problem, steps=1)


@pytest.mark.extras
def test_kernel_compiles_for_a_gpu():
    script = Path(__file__).parent / "compile_small_networks.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
