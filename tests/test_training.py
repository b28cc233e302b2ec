import io
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import howsure as hs
from howsure.errors import InputError
from howsure.nn import Population
from howsure.training import LoaderBatches, Part, Settings, TableBatches, resolve_device, train, train_parts
from howsure.training.adamw import AdamW
from howsure.training.batches import _hash
from howsure.training.progress import Progress

ROWS, FEATURES = 60, 3


def table(dtype=torch.float32):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=dtype)
    return x, x[:, 0] ** 2 + 0.1 * torch.randn(ROWS, generator=g, dtype=dtype)


def nll(module, batch):
    x, y = batch
    return hs.evidential_loss(hs.NormalInverseGamma.from_raw(module(x)), y, 0.01, reduction="none").mean(-1)


def setting(seeds=(0, 1, 2), dtype=torch.float32, batch_size=8):
    x, y = table(dtype)
    rows = [torch.arange(ROWS)[torch.arange(ROWS) % 5 != s % 5] for s in seeds]
    population = Population(seeds, FEATURES, (16,), 4, "silu").to(dtype)
    return population, TableBatches((x, y), rows, seeds, batch_size)


def validate_on(x, y):
    return lambda module: nll(module, (x.expand(module.members, -1, -1), y.expand(module.members, -1)))


# Batches ------------------------------------------------------------------------------------------------------------


def test_rows_drawn_ahead_are_those_of_the_batches_to_come():
    x = torch.arange(50.0).unsqueeze(1)
    rows = [torch.arange(50), torch.arange(10, 17)]
    ahead, one_by_one = (TableBatches((x,), rows, [4, 9], 3) for _ in range(2))
    one_by_one.next(), ahead.next()
    drawn = ahead.skip(5)
    assert torch.equal(x[drawn], torch.stack([one_by_one.next()[0] for _ in range(5)], 1))
    assert torch.equal(ahead.next()[0], one_by_one.next()[0])


def test_fast_steps_take_the_place_of_steps(tmp_path):
    """fast_steps is called for the steps up to each evaluation, with Adam's state, which a checkpoint keeps."""
    asked = []

    def fast_steps(parameters, first, second, rates, before):
        asked.append((before, len(rates), float(first[0].flatten()[0])))
        for p, m in zip(parameters, first, strict=True):
            p.zero_()
            m.add_(2.0)
        return torch.full((2,), 7.0)

    def run(fast_steps):
        settings = Settings(steps=25, evaluate_every=10, checkpoint_every=1)
        net, batches = setting((0, 1))
        return net, train(net, batches, nll, fast_steps=fast_steps, settings=settings, checkpoint=tmp_path / "state")

    with pytest.raises(ZeroDivisionError):
        run(lambda *given: fast_steps(*given) if given[-1] < 20 else 1 // 0)
    net, result = run(fast_steps)
    assert asked == [(0, 10, 0.0), (10, 10, 2.0), (20, 5, 4.0)]
    assert not any(p.any() for p in net.parameters())
    assert (result.steps, result.history[-1]["loss"]) == (25, 7.0)


def test_each_member_draws_from_its_own_rows_only():
    rows = [torch.arange(0, 10), torch.arange(10, 40), torch.tensor([50])]
    x = torch.arange(ROWS, dtype=torch.float32).unsqueeze(1)
    batches = TableBatches((x, x[:, 0]), rows, [0, 1, 2], 64)
    for _ in range(20):
        drawn, target = batches.next()
        assert torch.equal(drawn[..., 0], target)
        for k, allowed in enumerate(rows):
            assert torch.isin(target[k].long(), allowed).all()


def test_draws_are_uniform_and_differ_between_members_and_steps():
    x = torch.arange(ROWS, dtype=torch.float32).unsqueeze(1)
    batches = TableBatches((x, x[:, 0]), [torch.arange(ROWS)] * 2, [0, 1], 600)
    draws = torch.stack([batches.next()[1] for _ in range(100)])
    counts = torch.bincount(draws[:, 0].long().flatten(), minlength=ROWS).double()
    expected = 100 * 600 / ROWS
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < ROWS - 1 + 5 * (2 * (ROWS - 1)) ** 0.5
    assert not torch.equal(draws[:, 0], draws[:, 1])
    assert not torch.equal(draws[0], draws[1])
    bits = _hash(torch.arange(100_000).unsqueeze(0))
    assert ((bits >> torch.arange(62).unsqueeze(1)) & 1).double().mean(1).sub(0.5).abs().max() < 0.01


def test_member_gets_the_same_batches_in_any_population():
    x, y = table()
    rows = [torch.arange(20), torch.arange(30)]
    both, alone = TableBatches((x, y), rows, [4, 9], 8), TableBatches((x, y), rows[1:], [9], 8)
    for _ in range(5):
        assert torch.equal(both.next()[0][1], alone.next()[0][0])


def test_bad_batches_raise():
    x, y = table()
    with pytest.raises(hs.InputError, match=r"\b1\b"):
        TableBatches((x, y), [torch.arange(3), torch.arange(0)], [0, 1], 8)
    with pytest.raises(hs.InputError, match=r"\b1\b.*\b2\b"):
        TableBatches((x, y), [torch.arange(3)], [0, 1], 8)
    with pytest.raises(hs.InputError, match="batch_size") as caught:
        TableBatches((x, y), [torch.arange(3)], [0], 0)
    assert caught.value.value == 0
    with pytest.raises(hs.InputError, match="drop_last"):
        LoaderBatches([], torch.device("cpu")).next()


# The loop -----------------------------------------------------------------------------------------------------------


def test_member_i_equals_the_network_trained_alone():
    """In float64 over 200 steps: against a population of one, and against a loop written out with torch's own parts."""
    seeds, settings = (0, 1, 2, 3), Settings(steps=200, weight_decay=0.01, clip=1.0, evaluate_every=200)
    population, batches = setting(seeds, torch.float64)
    train(population, batches, nll, settings=settings)
    for i, seed in enumerate(seeds):
        alone, own = setting((seed,), torch.float64)
        train(alone, own, nll, settings=settings)
        plain, own = setting((seed,), torch.float64)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1.0, weight_decay=0.01)
        for step in range(200):
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(torch.tensor(float(step), dtype=torch.float64)).item()
            optimizer.zero_grad()
            nll(plain, own.next()).sum().backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
        for mine, theirs, written in zip(population.parameters(), alone.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine[i], theirs[0], rtol=1e-9, atol=1e-11)
            assert torch.allclose(mine[i], written[0], rtol=1e-4, atol=1e-6)  # its learning rates are float32


def test_training_learns_and_keeps_the_best_weights():
    x, y = table()
    population, batches = setting()
    validate = validate_on(x, y)
    start = validate(population)
    result = train(population, batches, nll, validate=validate, settings=Settings(steps=600, learning_rate=1e-2))
    assert (result.best_score < start - 0.5).all()
    assert torch.allclose(validate(population), result.best_score, atol=1e-5)
    assert result.steps == 600
    assert not result.diverged.any()
    assert [h["step"] for h in result.history] == [100, 200, 300, 400, 500, 600]


def test_same_seed_same_result():
    runs = []
    for _ in range(2):
        population, batches = setting()
        train(population, batches, nll, settings=Settings(steps=50))
        runs.append([p.clone() for p in population.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_diverging_member_is_marked_and_its_neighbours_stay_untouched():
    def explosive(module, batch):
        loss = nll(module, batch)
        factor = torch.ones_like(loss)
        factor[1] = torch.nan if batches.step > 120 else 1.0
        return loss * factor

    x, y = table()
    settings = Settings(steps=300, evaluate_every=50)
    population, batches = setting()
    result = train(population, batches, explosive, validate=validate_on(x, y), settings=settings)
    healthy, own = setting((0, 2))
    own.rows, own.counts = batches.rows[[0, 2]], batches.counts[[0, 2]]
    expected = train(healthy, own, nll, validate=validate_on(x, y), settings=settings)
    assert result.diverged.tolist() == [False, True, False]
    assert torch.allclose(result.best_score[[0, 2]], expected.best_score, rtol=1e-4)
    assert result.best_step[1] <= 100  # the earlier best step stays
    assert all(p.isfinite().all() for p in population.parameters())


def test_members_stop_one_by_one():
    scores = iter([[5.0, 5.0], [4.0, 6.0], [3.0, 7.0], [2.0, 1.0], [1.0, 0.0], [0.5, 0.0]])
    population, batches = setting((0, 1))
    seen = []

    def validate(module):
        seen.append([p.clone() for p in module.parameters()])
        return torch.tensor(next(scores))

    result = train(
        population, batches, nll, validate=validate, settings=Settings(steps=60, evaluate_every=10, patience=2)
    )
    assert result.best_score.tolist() == [0.5, 5.0]  # the second stopped after two evaluations without improvement
    expected = {"best_step": int(result.best_step[1]), "best_score": 5.0, "diverged": False, "seconds": result.seconds}
    assert result.summary(1) == expected
    assert result.best_step.tolist() == [60, 10]
    assert result.stopped_early.tolist() == [False, True]
    assert torch.equal(population.weights[0][1], seen[0][0][1])
    assert torch.equal(population.weights[0][0], seen[5][0][0])


def test_loop_ends_when_all_have_stopped():
    population, batches = setting((0, 1))
    result = train(
        population,
        batches,
        nll,
        validate=lambda m: torch.ones(2),
        settings=Settings(steps=10_000, evaluate_every=5, patience=3),
    )
    assert result.steps == 20
    assert result.stopped_early.all()


def test_clipping_is_per_member():
    def loud(module, batch):
        return nll(module, batch) * torch.tensor([1.0, 1e6])

    population, batches = setting((0, 1))
    alone, own = setting((0,))
    settings = Settings(steps=20, clip=1e-3)
    train(population, batches, loud, settings=settings)
    train(alone, own, nll, settings=settings)
    assert torch.allclose(population.weights[0][0], alone.weights[0][0], atol=1e-6)


def test_interrupt_is_raised_again_and_keeps_the_best_so_far():
    x, y = table()
    population, batches = setting()
    validate, calls = validate_on(x, y), []

    def interrupted(module):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return validate(module)

    scores = []

    def watched(module):
        scores.append(interrupted(module))
        return scores[-1]

    with pytest.raises(KeyboardInterrupt):
        train(population, batches, nll, validate=watched, settings=Settings(steps=10_000, evaluate_every=20))
    assert len(scores) == 3
    assert torch.allclose(validate(population), torch.stack(scores).amin(0), atol=1e-5)


@pytest.mark.parametrize("when", [30, 40, 70])
def test_stopped_run_resumes_to_the_same_numbers(tmp_path, when):
    x, y = table()
    settings = Settings(steps=100, evaluate_every=10, checkpoint_every=2)
    through, batches = setting()
    expected = train(through, batches, nll, validate=validate_on(x, y), settings=settings)

    def stop(module, batch):
        if batches.step > when:
            raise KeyboardInterrupt
        return nll(module, batch)

    path = tmp_path / "run.ckpt"
    population, batches = setting()
    with pytest.raises(KeyboardInterrupt):
        train(population, batches, stop, validate=validate_on(x, y), settings=settings, checkpoint=path)
    population, batches = setting()
    result = train(population, batches, nll, validate=validate_on(x, y), settings=settings, checkpoint=path)
    assert torch.equal(result.best_score, expected.best_score)
    assert torch.equal(result.best_step, expected.best_step)
    assert [h["step"] for h in result.history] == [h["step"] for h in expected.history]
    assert all(torch.equal(a, b) for a, b in zip(population.parameters(), through.parameters(), strict=True))
    # and once more: a finished run is not run again
    population, batches = setting()
    again = train(population, batches, stop, validate=validate_on(x, y), settings=settings, checkpoint=path)
    assert torch.equal(again.best_score, expected.best_score)
    assert list(tmp_path.iterdir()) == [path]


def test_killed_process_resumes_to_the_same_numbers(tmp_path):
    """The process dies without warning in the middle of training; a second one continues from its file."""
    program = textwrap.dedent("""
        import os, sys, torch
        sys.path.insert(0, sys.argv[2])
        from test_training import nll, setting, table, validate_on
        from howsure.training import Settings, train
        population, batches = setting()
        def loss(module, batch):
            if sys.argv[3] == "die" and batches.step > 70:
                os.kill(os.getpid(), 9)
            return nll(module, batch)
        settings = Settings(steps=100, evaluate_every=10, checkpoint_every=1)
        validate = validate_on(*table())
        result = train(population, batches, loss, validate=validate, settings=settings, checkpoint=sys.argv[1])
        print(result.best_score.tolist())
    """)
    here = str(Path(__file__).parent)

    def run(path, mode):
        return subprocess.run(
            [sys.executable, "-c", program, str(path), here, mode], capture_output=True, text=True, check=False
        )

    killed = run(tmp_path / "a.ckpt", "die")
    assert killed.returncode == -9
    resumed, whole = run(tmp_path / "a.ckpt", "live"), run(tmp_path / "b.ckpt", "live")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout


def test_bad_checkpoints_raise(tmp_path):
    path = tmp_path / "run.ckpt"
    population, batches = setting()
    train(population, batches, nll, settings=Settings(steps=10, evaluate_every=10), checkpoint=path)
    with pytest.raises(hs.InputError, match="settings"):
        train(*setting(), nll, settings=Settings(steps=20), checkpoint=path)
    with pytest.raises(hs.InputError, match="shapes"):
        train(*setting((0, 1)), nll, settings=Settings(steps=10, evaluate_every=10), checkpoint=path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(hs.InputError):
        train(*setting(), nll, settings=Settings(steps=10, evaluate_every=10), checkpoint=path)


# A module of the user's own -----------------------------------------------------------------------------------------


def own_setting(shuffle=True):
    torch.manual_seed(3)
    x, y = table()
    net = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), hs.NIGHead(16))
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=shuffle)
    return net, LoaderBatches(loader, torch.device("cpu"))


def own_loss(module, batch):
    return hs.evidential_loss(module(batch[0]), batch[1])


def own_validate(module):
    x, y = table()
    return hs.evidential_loss(module(x), y, weight=0.0)


def test_loop_trains_any_module_from_a_loader():
    net, batches = own_setting()
    start = own_validate(net.eval()).item()
    result = train(net, batches, own_loss, validate=own_validate, settings=Settings(steps=300, learning_rate=1e-2))
    assert result.best_score.shape == (1,)
    assert result.best_score.item() < start - 0.3
    assert own_validate(net.eval()).item() == pytest.approx(result.best_score.item(), abs=1e-5)


def test_training_from_a_loader_resumes_to_the_same_numbers(tmp_path):
    settings = Settings(steps=60, evaluate_every=7, checkpoint_every=1)
    net, batches = own_setting()
    expected = train(net, batches, own_loss, validate=own_validate, settings=settings)
    stopped, batches = own_setting()
    count = []

    def stop(module, batch):
        count.append(1)
        if len(count) == 33:
            raise KeyboardInterrupt
        return own_loss(module, batch)

    with pytest.raises(KeyboardInterrupt):
        train(stopped, batches, stop, validate=own_validate, settings=settings, checkpoint=tmp_path / "c")
    resumed, batches = own_setting()
    result = train(resumed, batches, own_loss, validate=own_validate, settings=settings, checkpoint=tmp_path / "c")
    assert torch.equal(result.best_score, expected.best_score)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), resumed.state_dict().values(), strict=True))


def test_bfloat16_trains():
    net, batches = own_setting()
    start = own_validate(net.eval()).item()
    result = train(
        net,
        batches,
        own_loss,
        validate=own_validate,
        settings=Settings(steps=200, learning_rate=1e-2, precision="bfloat16"),
    )
    assert result.best_score.item() < start


# Around it ----------------------------------------------------------------------------------------------------------


def test_learning_rate_warms_up_and_falls_along_a_cosine():
    settings = Settings(steps=100, learning_rate=2.0, warmup=0.1)
    rates = [settings.rate(torch.tensor(float(s))).item() for s in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(1.0)
    assert rates[99] < 0.01
    flat = Settings(steps=100, learning_rate=2.0, warmup=0.0, schedule="constant")
    assert flat.rate(torch.tensor(70.0)).item() == 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"warmup": 1.0}, "warmup"),
        ({"schedule": "step"}, "'step'"),
        ({"precision": "half"}, "'half'"),
    ],
)
def test_bad_settings_raise(arguments, message):
    with pytest.raises(hs.InputError, match=message):
        Settings(**arguments)


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(hs.InputError, match="CUDA"):
            resolve_device("cuda")
    with pytest.raises(hs.InputError):
        train(nn.Identity(), setting()[1], nll)


class Terminal(io.StringIO):
    def isatty(self):
        return True


LATEST = {"loss": 1.0, "score": 2.0, "running": 3}


@pytest.mark.parametrize(
    ("enabled", "stream", "shown"),
    [(True, Terminal, True), (True, io.StringIO, True), (None, Terminal, True), (None, io.StringIO, False),
     (False, Terminal, False)],
)  # fmt: skip
def test_progress_appears_after_two_seconds(enabled, stream, shown):
    stream = stream()
    with Progress(100, enabled=enabled, stream=stream) as progress:
        progress.update(10, LATEST)
        assert stream.getvalue() == ""
        if progress.bar is not None:  # as if twelve seconds had passed
            progress.bar.start_t -= 12
            progress.bar.last_print_t -= 12
        progress.update(50, LATEST)
    assert ("validation=2" in stream.getvalue()) == shown
    assert ("50/100" in stream.getvalue()) == shown


def test_averaged_weights_are_scored_and_kept():
    x, y = table()
    settings = Settings(steps=200, evaluate_every=20, schedule="constant", learning_rate=3e-2)
    rough, batches = setting()
    as_they_are = train(rough, batches, nll, validate=validate_on(x, y), settings=settings)
    smooth, batches = setting()
    averaged = train(smooth, batches, nll, validate=validate_on(x, y), settings=replace(settings, averaging=0.2))
    assert (averaged.best_score < as_they_are.best_score).all()
    assert torch.allclose(validate_on(x, y)(smooth), averaged.best_score)  # the module holds the scored weights


def test_averages_follow_a_constant_rate_of_forgetting():
    class Counting(torch.nn.Module):  # whose weight is the number of steps, by a gradient of −1 in SGD's place
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

    module, seen = Counting(), []

    def validate(m):
        seen.append(m.weight.item())
        return torch.zeros(1)

    _, batches = setting()
    settings = Settings(
        steps=100, evaluate_every=10, averaging=0.5, schedule="constant", warmup=0, learning_rate=1.0, clip=None
    )
    train(module, batches, lambda m, _: -m.weight.sum(), validate=validate, settings=settings)
    expected, average = [], 0.0
    for step in range(10, 101, 10):  # Adam moves by the learning rate while the gradient is constant
        average += (step - average) * min(1, 10 / (0.5 * step))
        expected.append(average)
    assert seen == pytest.approx(expected, rel=1e-3)


def test_all_stop_together_when_the_mean_of_best_scores_stalls():
    falling = iter([5.0 - k if k < 8 else -2.0 - 1e-4 * k for k in range(1000)])
    population, batches = setting((0, 1))
    result = train(
        population,
        batches,
        nll,
        validate=lambda m: torch.tensor([next(falling), 1.0]),
        settings=Settings(steps=10_000, evaluate_every=10, plateau=0.25),
    )
    steps = [row["step"] for row in result.history]
    assert steps[:7] == [2, 4, 6, 8, 10, 20, 30]  # networks may be best almost at once
    # the mean has not fallen by 0.003 since step 40, 200 steps ago. A quarter of 240 steps is less than 200
    assert result.steps == 240
    assert result.stopped_early.all()
    assert [row["running"] for row in result.history] == [2] * (len(steps) - 1) + [0]


def test_networks_that_have_learned_nothing_yet_are_given_time():
    scores = iter([1.4] * 26 + [0.2] * 1000)  # from step 230 on
    population, batches = setting((0,))
    settings = Settings(steps=1000, evaluate_every=10, plateau=0.25)
    result = train(population, batches, nll, validate=lambda m: torch.tensor([next(scores)]), settings=settings)
    assert result.best_score.item() == pytest.approx(0.2)
    assert result.steps == 430
    nothing = train(*setting((0,)), nll, validate=lambda m: torch.tensor([1.4]), settings=settings)
    assert nothing.steps == 260


def test_parts_that_train_in_threads_are_as_one():
    x, y = table()
    settings = Settings(steps=120, evaluate_every=10, averaging=0.1, plateau=0.3)
    together, batches = setting((0, 1, 2))
    expected = train(together, batches, nll, validate=validate_on(x, y), settings=settings)
    parts = [Part(*setting(seeds), nll, validate_on(x, y)) for seeds in ((0, 1), (2,))]
    first, second = train_parts(parts, settings)
    assert torch.allclose(torch.cat([first.best_score, second.best_score]), expected.best_score, atol=1e-6)
    assert first.steps == second.steps == expected.steps
    assert first.history == second.history
    assert [row["running"] for row in first.history] == [row["running"] for row in expected.history]
    joined = [torch.cat(ps) for ps in zip(*(part.module.parameters() for part in parts), strict=True)]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(joined, together.parameters(), strict=True))


def test_error_in_one_part_ends_all_of_them():
    steps = []

    def fails(module, batch):
        raise RuntimeError("out of paper")

    def counts(module, batch):
        steps.append(1)
        return nll(module, batch)

    parts = [Part(*setting((0,)), fails), Part(*setting((1,)), counts)]
    with pytest.raises(RuntimeError, match="paper"):
        train_parts(parts, Settings(steps=10_000, evaluate_every=10_000), threads=2)
    assert len(steps) < 10_000
    assert parts[1].module.weights[0].isfinite().all()
    with pytest.raises(RuntimeError, match="paper"):
        train_parts(parts[::-1], Settings(steps=100, evaluate_every=100))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"decay": 0.0}, "decay"),
        ({"averaging": 1.0}, "averaging"),
        ({"plateau": -0.1}, "plateau"),
    ],
)
def test_shares_are_checked(wrong, message):
    with pytest.raises(InputError, match=message):
        Settings(**wrong)


def test_late_decay_is_the_end_of_a_cosine():
    steps = torch.arange(1000)
    rate = Settings(steps=1000, learning_rate=1.0, warmup=0, decay=0.2).rate(steps)
    assert rate[:800].eq(1).all()
    assert torch.allclose(rate[800:], Settings(steps=200, learning_rate=1.0, warmup=0).rate(steps[:200]), atol=1e-2)


def test_optimizer_is_torchs(tmp_path):
    """Same numbers as torch.optim.AdamW, with a parameter that has no gradient and a rate that changes."""
    g = torch.Generator().manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))] for _ in range(2))
    rate = torch.tensor(0.1)
    here, there = AdamW(ours, rate, 0.01), torch.optim.AdamW(theirs, lr=rate, weight_decay=0.01, fused=True)
    for step in range(5):
        rate.fill_(0.1 / (1 + step))
        here.zero_grad(), there.zero_grad()
        noise = torch.randn(3, 2, generator=g)
        (ours[0] * noise).sum().backward()
        (theirs[0] * noise).sum().backward()
        here.step(), there.step()
        if step == 2:  # a run that resumes
            state = here.state_dict()
            here = AdamW(ours, rate, 0.01)
            here.load_state_dict(state)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], torch.ones(2))


def test_fit_does_not_import_torchs_compiler():
    program = (
        "import sys, numpy as np, howsure as hs; x = np.random.rand(30, 2); "
        "hs.EvidentialRegressor(steps=5, members=2, device='cpu').fit(x, x[:, 0]).predict_interval(x); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
