"""The training loop, for a population of tabular networks and for any single module."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from howsure.errors import InputError
from howsure.threads import one_thread
from howsure.training.adamw import AdamW
from howsure.training.batches import Batches
from howsure.training.checkpoint import load_checkpoint, save_checkpoint
from howsure.training.progress import Progress
from howsure.training.settings import Settings, Training

__all__ = ["Part", "train", "train_parts"]

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
Validate = Callable[[nn.Module], Tensor]
# (parameters, Adam's first and second moments, learning rates, steps before) → the last loss of each member
FastSteps = Callable[[list[Tensor], list[Tensor], list[Tensor], Tensor, int], Tensor]


RESULTS = ("best_score", "best_step", "diverged", "stopped_early", "seconds", "history")  # of a checkpoint
_MIN_NATS_LEARNED = 0.15  # gain over the score of a constant, or over the first score, that shows that a run learns


def train(
    module: nn.Module,
    batches: Batches,
    loss: Loss,
    *,
    validate: Validate | None = None,
    settings: Settings | None = None,
    fast_steps: FastSteps | None = None,
    checkpoint: str | Path | None = None,
    identity: str = "",
    progress: bool | None = False,
) -> Training:
    """Train ``module`` in place, and leave it with the best weights of each member.

    A member whose weights or score are no longer finite is marked as diverged; the others go on, unaffected. An
    interrupt (Ctrl-C) ends the training, leaves the module with the best weights so far and the checkpoint as last
    written, and is raised again.

    Args:
        module: a :class:`~howsure.nn.Population`, or any module, which counts as one member.
        batches: :class:`TableBatches`, :class:`ImageBatches` or :class:`LoaderBatches`.
        loss: takes the module and a batch, and returns the loss of each member or a scalar.
        validate: takes the module and returns a score per member, smaller is better. Without it the last weights are
            kept.
        settings: see :class:`Settings`; None takes the defaults.
        fast_steps: replaces the steps between two evaluations. It takes as many steps as it is given learning rates,
            changes parameters and moments in place, and advances the batches.
        checkpoint: file to write while training. If it exists, the run continues from it, to the same result as
            without the interruption. Delete it to start anew.
        identity: identifies data, seeds and method. A checkpoint with another identity raises an error.
        progress: whether to show a progress bar after two seconds; None shows one on a terminal only.

    Returns:
        The scores, the best steps, and which members diverged or stopped early.

    Raises:
        InputError: if the module has no parameters, or a checkpoint is damaged or belongs to another run.

    >>> import howsure as hs
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from howsure.training import LoaderBatches
    >>> rows = TensorDataset(torch.randn(32, 2), torch.randn(32))
    >>> batches = LoaderBatches(DataLoader(rows, batch_size=8), torch.device("cpu"))
    >>> loss = lambda net, batch: hs.evidential_loss(net(batch[0]), batch[1])
    >>> train(hs.NIGHead(2), batches, loss, settings=Settings(steps=4)).steps
    4
    """
    part = Part(module, batches, loss, validate, fast_steps)
    return train_parts([part], settings or Settings(), checkpoint, identity, progress)[0]


@dataclass(frozen=True)
class Part:
    """Members that train as one module, with their data. The fields are arguments of :func:`train`.

    ``constant`` is the score of a prediction that does not depend on the features, or None without such a score.
    """

    module: nn.Module
    batches: Batches
    loss: Loss
    validate: Validate | None = None
    fast_steps: FastSteps | None = None
    constant: float | None = None


def train_parts(
    parts: Sequence[Part],
    settings: Settings,
    checkpoint: str | Path | None = None,
    identity: str = "",
    progress: bool | None = False,
    threads: int = 1,
) -> list[Training]:
    """Train several modules at once, as if they were one, in ``threads`` threads, and return a result for each.

    They take the same steps, wait for each other at every evaluation, and stop together. All results have the history
    of all members. Other arguments as in :func:`train`. A checkpoint takes a single part.
    """
    if checkpoint is not None and len(parts) > 1:
        raise InputError("a checkpoint holds one part of a training, not several")
    runs = _Runs([_Run(part, settings, identity) for part in parts], threads)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        _resume(runs.each[0], path)
    started = time.perf_counter() - runs.results[0].seconds
    with Progress(settings.steps, enabled=progress) as bar, runs:
        while runs.step < settings.steps and not runs.finished:
            runs.advance()
            runs.results[0].seconds = time.perf_counter() - started
            bar.update(runs.step, runs.history[-1])
            if path is not None and len(runs.history) % settings.checkpoint_every == 0:
                save_checkpoint(path, runs.each[0].state())
        if path is not None:
            save_checkpoint(path, runs.each[0].state())
    for result in runs.results:
        result.seconds, result.history = time.perf_counter() - started, runs.history
    return runs.results


class _Runs:
    """Context of runs that go on together: in the caller's thread, one after the other, or in several threads.

    At the end, also if that is an error or an interrupt, every module has its best weights.
    """

    def __init__(self, runs: Sequence["_Run"], threads: int) -> None:
        self.each, self.settings, self.constant = runs, runs[0].settings, runs[0].part.constant
        self.results = [run.result for run in runs]
        self.pool = ThreadPoolExecutor(min(threads, len(runs))) if min(threads, len(runs)) > 1 else None

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.results[0].history

    @property
    def step(self) -> int:
        return self.each[0].step

    @property
    def finished(self) -> bool:
        return bool(self.history) and self.history[-1]["running"] == 0

    def __enter__(self) -> Self:
        return self

    def advance(self) -> None:
        """Take the steps up to the next evaluation, evaluate, and record the result."""
        if self.pool is None:
            for run in self.each:
                run.advance()
        else:
            for _ in self.pool.map(_advance, self.each):
                pass
        self._note()

    def _note(self) -> None:
        """Add the means of healthy members to the history, and stop all of them if nothing improves any more."""
        columns = zip(*((r.last_loss, r.result.best_score, *r.latest) for r in self.each), strict=True)
        losses, best, scores, healthy = (torch.cat(column) for column in columns)
        self.history.append(
            {
                "step": self.step,
                "loss": _mean_of(losses, healthy),
                "score": _mean_of(scores, healthy),
                "best": _mean_of(best, best.isfinite()),
            }
        )
        if self._has_plateaued():
            for result in self.results:
                result.stopped_early |= ~result.diverged
        running = sum(int((~r.diverged & ~r.stopped_early).sum()) for r in self.results)
        self.history[-1]["running"] = running

    def _has_plateaued(self) -> bool:
        """Return whether the mean best score has hardly fallen for so long that the members should stop."""
        settings, now = self.settings, self.history[-1]["best"]
        if not settings.plateau or self.each[0].part.validate is None:
            return False
        window = max(settings.plateau * self.step, 5 * settings.evaluate_every, 200)
        start = next((row["best"] for row in self.history if row["step"] >= settings.evaluate_every), now)
        start = start if self.constant is None else self.constant
        if not start - now >= _MIN_NATS_LEARNED:  # some tables give nothing away for a long time
            window = max(window, settings.steps / 4)
        before = [row.get("best", math.nan) for row in self.history if row["step"] <= self.step - window]
        return bool(before) and not before[-1] - now >= settings.least_gain

    def __exit__(self, *error: object) -> None:
        for run in self.each:
            run.cancelled = True
        if self.pool is not None:
            self.pool.shutdown()
        for run in self.each:
            run.keep_best()


def _advance(run: "_Run") -> None:
    with one_thread():
        run.advance()


def _resume(run: "_Run", path: Path) -> None:
    """Restore the run from the checkpoint, or raise an error if that is damaged or belongs to another run."""
    try:
        run.restore(load_checkpoint(path, run.device))
    except (InputError, OSError):
        raise
    except Exception as error:  # torch.load raises many types of errors for other files
        hint = "delete it to start anew, or name another file"
        raise InputError(f"{path} is not a checkpoint of a training, or is damaged ({error!r})", hint=hint) from error


class _Run:
    """State of a training run, and its steps, evaluations and checkpoints. Arguments as in :func:`train_parts`."""

    def __init__(self, part: Part, settings: Settings, identity: str = "") -> None:
        self.part, self.settings, self.identity = part, settings, identity
        self.module = module = part.module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("the module has no parameters to train")
        self.device = self.parameters[0].device
        # the generator of the module's noise; None is torch's global one
        self.generator: torch.Generator | None = getattr(module, "generator", None)
        self.members = int(getattr(module, "members", 1))
        self.has_member_axis = hasattr(module, "members")
        self.step = 0
        # learning rates and the step counter are on the device, where a captured graph can read them
        rates = settings.rate(torch.arange(settings.steps, device="cpu"))
        self.rates = rates.to(self.device)
        self.relative_rates = (rates / settings.learning_rate).tolist() if settings.averaging else []
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.rate = torch.tensor(0.0, dtype=torch.float32, device=self.device)
        self.optimizer = AdamW(self.parameters, self.rate, settings.weight_decay)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captures = self.device.type == "cuda" and part.batches.static
        # every step would cost a tenth of the training and change nothing; before an evaluation it has to be
        self.averaged_every = min(10, settings.first_evaluations)
        self.averages = [p.detach().clone() for p in self.parameters] if settings.averaging else []
        self.last_loss = torch.zeros(self.members, dtype=torch.float32, device=self.device)
        # tensors whose best state is kept: the weights, and the running statistics of a user's own module
        self.kept_tensors = [*self.parameters, *([] if self.has_member_axis else module.buffers())]
        self.best = [p.detach().clone() for p in self.kept_tensors]
        blank = torch.zeros(self.members, dtype=torch.float32, device=self.device)
        self.stale = blank.clone()  # evaluations since the best score
        self.result = Training(
            best_score=torch.full_like(blank, math.inf),
            best_step=torch.zeros(self.members, dtype=torch.int64, device=self.device),
            diverged=blank.bool(),
            stopped_early=blank.bool(),
        )
        self.cancelled = False

    # Steps ------------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take the steps up to the next evaluation, and evaluate."""
        every = self.settings.evaluate_every
        if self.step < every:
            every = self.settings.first_evaluations
        until = min(self.settings.steps, (self.step // every + 1) * every)
        self.module.train()
        if self.part.fast_steps is not None:
            self._many_steps(self.part.fast_steps, until - self.step)
        while self.step < until and not self.cancelled:
            self._one_step()
            self.step += 1
            if self.step % self.averaged_every == 0:
                self._average()
        self._evaluate()

    @torch.no_grad()
    def _many_steps(self, fast_steps: FastSteps, count: int) -> None:
        """Take ``count`` steps by ``fast_steps``, with the optimizer's state where the ordinary steps keep it."""
        rates, optimizer = self.rates[self.step : self.step + count], self.optimizer
        loss = fast_steps(list(self.parameters), optimizer.first, optimizer.second, rates, self.step)
        self.last_loss.copy_(loss)
        torch._foreach_add_(optimizer.steps, count)
        self.clock += count
        self.step += count

    def _one_step(self) -> None:
        """Take one step; on CUDA with static batches, replay a graph that was recorded after the first three steps."""
        if not self.captures:
            self._update()
        elif self.graph is None:
            # capturing requires the steps before it to run on a side stream; they train as any other
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._update()
            torch.cuda.current_stream().wait_stream(stream)
            if self.step >= 2:
                self.graph = torch.cuda.CUDAGraph()
                if self.generator is not None:
                    self.graph.register_generator_state(self.generator)
                self.optimizer.zero_grad()
                with torch.cuda.graph(self.graph):
                    self._update(captured=True)
        else:
            self.graph.replay()

    def _update(self, captured: bool = False) -> None:
        """Draw a batch and update the weights. While a CUDA graph is recorded, the caller has reset the gradients."""
        if not captured:
            self.optimizer.zero_grad()
        batch = self.part.batches.next()
        half = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if half else contextlib.nullcontext():
            each = self.part.loss(self.module, batch)
        each.sum().backward()
        self._clip()
        self.rate.copy_(self.rates.index_select(0, self.clock)[0])
        self.optimizer.step()
        self.clock += 1
        self.last_loss.copy_(each.detach().float().expand(self.members))

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averages towards the weights, all the way in the first steps."""
        if self.averages:
            span = self.settings.averaging * self.step * self.relative_rates[self.step - 1]
            part = self.averaged_every / max(span, self.averaged_every)
            torch._foreach_lerp_(self.averages, [p.detach() for p in self.parameters], part)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Set the module to the averaged weights inside the context."""
        latest = [p.detach().clone() for p in self.parameters] if self.averages else []
        for p, value in zip(self.parameters, self.averages, strict=False):
            p.copy_(value)
        try:
            yield
        finally:
            for p, value in zip(self.parameters, latest, strict=False):
                p.copy_(value)

    def _clip(self) -> None:
        """Scale each member's gradient down to the largest allowed norm, independently of the others."""
        if self.settings.clip is None:
            return
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if not self.has_member_axis:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
            return
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
        factor = (self.settings.clip / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
        if self.device.type == "cpu" and bool((factor == 1).all()):
            return  # looking costs nothing there, unlike on a GPU
        for g in gradients:
            g.mul_(factor.view(-1, *[1] * (g.ndim - 1)))

    # Evaluations ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Score all members, keep the weights of those that improved, and note who diverged or stopped."""
        self.module.eval()
        with self._averaged():
            self._score()

    def _score(self) -> None:
        """Evaluate the weights that the module has now."""
        result = self.result
        finite = [
            p.isfinite().flatten(1) if self.has_member_axis else p.isfinite().reshape(1, -1) for p in self.parameters
        ]
        healthy = torch.stack([each.all(1) for each in finite]).all(0)
        validate = self.part.validate
        score = self.last_loss if validate is None else validate(self.module).detach().float().reshape(-1)
        healthy = healthy & score.isfinite()
        result.diverged |= ~healthy
        running = healthy & ~result.stopped_early & ~result.diverged
        # without validation keep the last healthy weights
        better = running & ((score < result.best_score) | (validate is None))
        for kept, p in zip(self.best, self.kept_tensors, strict=True):
            choice = better.view(-1, *[1] * (p.ndim - 1)) if self.has_member_axis else better[0]
            kept.copy_(torch.where(choice, p, kept))
        result.best_score = torch.where(better, score, result.best_score)
        result.best_step = torch.where(better, self.step, result.best_step)
        self.stale = torch.where(better, 0, self.stale + 1)
        if self.settings.patience is not None:
            result.stopped_early |= running & (self.stale >= self.settings.patience)
        result.steps = self.step
        self.latest = score, healthy

    @torch.no_grad()
    def keep_best(self) -> None:
        """Set the module to the best weights of every member."""
        for p, kept in zip(self.kept_tensors, self.best, strict=True):
            p.copy_(kept)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that the next step depends on."""
        return {
            "identity": self.identity,
            "settings": {k: v for k, v in vars(self.settings).items() if k != "checkpoint_every"},
            "shapes": [list(p.shape) for p in self.parameters],
            "step": self.step,
            "weights": [p.detach() for p in self.parameters],
            "buffers": dict(self.module.named_buffers()),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "batches": self.part.batches.state(),
            "generator": torch.get_rng_state() if self.generator is None else self.generator.get_state(),
            "averages": self.averages,
            "stale": self.stale,
            "last_loss": self.last_loss,
            "clock": self.clock,
            **{name: getattr(self.result, name) for name in RESULTS},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state, or raise an error if it belongs to another run."""
        own = self.state()
        for key in ("settings", "shapes"):
            if state[key] != own[key]:
                raise InputError(f"the checkpoint belongs to another run: its {key} are {state[key]}, not {own[key]}")
        if state.get("identity") != self.identity:
            raise InputError(
                "the checkpoint belongs to another run, with other data, seeds or method",
                hint="delete it to start anew, or name another file",
            )
        with torch.no_grad():
            restored = (self.parameters, "weights"), (self.best, "best"), (self.averages, "averages")
            for target, values in ((own, state[name]) for own, name in restored):
                for p, value in zip(target, values, strict=True):
                    p.copy_(value)
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state["buffers"][name])
            self.clock.copy_(state["clock"])
            self.last_loss.copy_(state["last_loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.part.batches.restore(state["batches"])
        if self.generator is None:
            torch.set_rng_state(state["generator"])
        else:
            self.generator.set_state(state["generator"])
        self.step, self.stale = state["step"], state["stale"]
        for name in RESULTS:
            setattr(self.result, name, state[name])
        self.result.steps = self.step


def _mean_of(x: Tensor, healthy: Tensor) -> float:
    """Return the mean over healthy members, NaN if there is none."""
    return float(torch.where(healthy, x, 0.0).sum() / healthy.sum()) if bool(healthy.any()) else math.nan
