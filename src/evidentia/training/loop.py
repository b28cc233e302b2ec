"""The one training loop, for a population of tabular networks and for a single module of any kind."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evidentia.errors import InputError
from evidentia.training.batches import Batches
from evidentia.training.checkpoint import load_checkpoint, save_checkpoint
from evidentia.training.progress import Progress

__all__ = ["Settings", "Training", "resolve_device", "seeded", "train"]

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
Validate = Callable[[nn.Module], Tensor]
# (parameters, Adam's first and second moments, learning rates, steps before) → the last loss of each member
FastSteps = Callable[[list[Tensor], list[Tensor], list[Tensor], Tensor, int], Tensor]


@dataclass(frozen=True)
class Settings:
    """How to train. Every number can be left alone."""

    steps: int = 4000
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup: float = 0.05  # share of the steps in which the learning rate rises from 0
    schedule: str = "cosine"  # or "constant", after the warm-up
    clip: float | None = 10.0  # largest norm of a member's gradient
    evaluate_every: int = 100
    patience: int | None = None  # evaluations without improvement after which a member stops
    precision: str = "float32"  # or "bfloat16": autocast of the network; heads and losses stay in float32
    checkpoint_every: int = 10  # in evaluations

    def __post_init__(self) -> None:
        for name in ("steps", "learning_rate", "evaluate_every", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be greater than 0, got {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup is a share of the steps in [0, 1), got {self.warmup}")
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"unknown schedule {self.schedule!r}; known are cosine, constant")
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f"unknown precision {self.precision!r}; known are float32, bfloat16")

    def rate(self, step: Tensor) -> Tensor:
        """The learning rate of these steps, in float32 whatever torch's default dtype is."""
        step = step.float()
        warm = max(1, round(self.warmup * self.steps))
        rising = ((step + 1) / warm).clamp(max=1)
        if self.schedule == "constant":
            return self.learning_rate * rising
        progress = ((step - warm) / max(1, self.steps - warm)).clamp(0, 1)
        return self.learning_rate * rising * 0.5 * (1 + torch.cos(math.pi * progress))


@dataclass
class Training:
    """What came of it, with one entry per member where it says tensor."""

    best_score: Tensor
    best_step: Tensor
    diverged: Tensor  # a result like any other: such a member is never run again
    stopped_early: Tensor
    steps: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def summary(self, member: int) -> dict[str, Any]:
        """Return the result of one member as plain values, as records have it."""
        best = {"best_step": int(self.best_step[member]), "best_score": float(self.best_score[member])}
        return best | {"diverged": bool(self.diverged[member]), "seconds": self.seconds}


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device of this name. "auto" is CUDA where there is one, else the CPU; mps only when asked for."""
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device {name!r}; known are auto, cpu, cuda (or cuda:0, …) and mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!s} was asked for, but this machine has no CUDA device; use 'auto' or 'cpu'")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps was asked for, but this machine has none; use 'auto' or 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!s} was asked for, but this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draws from torch's own generators, here and on the device, follow from the seed; none is taken from others."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


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
    progress: bool = False,
) -> Training:
    """Train ``module`` in place, and leave it with the best weights of each member.

    Args:
        module: a :class:`~evidentia.nn.Population`, or any module, which counts as one member.
        batches: :class:`TableBatches` or :class:`LoaderBatches`.
        loss: (module, batch) → the loss of each member, or a scalar.
        validate: module → a score per member, smaller is better; without it the last weights are kept.
        settings: how long and how fast.
        fast_steps: a fast twin of the steps between two evaluations: it takes as many as it is given learning rates for,
            changes parameters and moments in place, and moves the batches on.
        checkpoint: a file to write while training, and to continue from if it exists, to the same numbers. Delete it to
            start anew.
        identity: what the run is, in a word: data, seeds, method. A checkpoint of another identity is refused.
        progress: show a bar on a terminal, plain lines elsewhere.

    A member whose weights or score stop being finite is marked as diverged and left behind; the others go on untouched.

    An interrupt (Ctrl-C) ends the training and is raised again. The checkpoint stays as last written, and the module is
    left with the best weights so far.
    """
    run = _Run(module, batches, loss, validate, settings or Settings(), fast_steps, identity)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        state = load_checkpoint(path, run.device)
        try:
            run.restore(state)
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(f"checkpoint {path} is damaged ({error!r}); delete it to start anew") from error
    started = time.perf_counter() - run.result.seconds
    with Progress(run.settings.steps, enabled=progress) as bar:
        try:
            while run.step < run.settings.steps and not run.finished:
                run.advance()
                run.result.seconds = time.perf_counter() - started
                bar.update(run.step, run.result.history[-1])
                if path is not None and len(run.result.history) % run.settings.checkpoint_every == 0:
                    save_checkpoint(path, run.state())
            if path is not None:
                save_checkpoint(path, run.state())
        except KeyboardInterrupt:
            run.keep_best()
            raise
    run.keep_best()
    run.result.seconds = time.perf_counter() - started
    return run.result


class _Run:
    """The state of one training, and its step."""

    def __init__(
        self,
        module: nn.Module,
        batches: Batches,
        loss: Loss,
        validate: Validate | None,
        settings: Settings,
        fast_steps: FastSteps | None = None,
        identity: str = "",
    ) -> None:
        self.fast_steps, self.identity = fast_steps, identity
        self.module, self.batches, self.loss, self.validate, self.settings = module, batches, loss, validate, settings
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("the module has no parameters to train")
        self.device = self.parameters[0].device
        # what the module draws its noise from; without one of its own, torch's global generator
        self.generator: torch.Generator | None = getattr(module, "generator", None)
        self.members = int(getattr(module, "members", 1))
        self.grouped = hasattr(module, "members")
        self.step = 0
        # learning rates wait on the device, where a captured graph finds them
        self.rates = settings.rate(torch.arange(settings.steps, device="cpu")).to(self.device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.rate = torch.tensor(0.0, dtype=torch.float32, device=self.device)
        cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            weight_decay=settings.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
            capturable=cuda,
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captures = cuda and batches.static
        self.last_loss = torch.zeros(self.members, dtype=torch.float32, device=self.device)
        # what is kept of the best moment: weights, and for a module of the user's own also its running statistics
        self.kept_tensors = [*self.parameters, *([] if self.grouped else module.buffers())]
        self.best = [p.detach().clone() for p in self.kept_tensors]
        blank = torch.zeros(self.members, dtype=torch.float32, device=self.device)
        self.stale = blank.clone()
        self.result = Training(
            best_score=torch.full_like(blank, math.inf),
            best_step=torch.zeros(self.members, dtype=torch.int64, device=self.device),
            diverged=blank.bool(),
            stopped_early=blank.bool(),
        )
        self.finished = False

    # Steps ------------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Steps up to the next evaluation, and that evaluation."""
        every = self.settings.evaluate_every
        until = min(self.settings.steps, (self.step // every + 1) * every)
        self.module.train()
        if self.fast_steps is not None:
            self._many_steps(self.fast_steps, until - self.step)
        while self.step < until:
            self._one_step()
            self.step += 1
        self._evaluate()

    @torch.no_grad()
    def _many_steps(self, fast_steps: FastSteps, count: int) -> None:
        for p in self.parameters:
            if p not in self.optimizer.state:
                step = torch.zeros((), dtype=torch.float32, device=self.device)
                moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.optimizer.state[p] = {"step": step, **moments}
        states = [self.optimizer.state[p] for p in self.parameters]
        first, second = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        rates = self.rates[self.step : self.step + count]
        self.last_loss.copy_(fast_steps(list(self.parameters), first, second, rates, self.step))
        for state in states:
            state["step"] += count
        self.clock += count
        self.step += count

    def _one_step(self) -> None:
        if not self.captures:
            self._update()
        elif self.graph is None:
            # the first steps run on a side stream, as capturing demands; they are steps like any other
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._update()
            torch.cuda.current_stream().wait_stream(stream)
            if self.step >= 2:
                self.graph = torch.cuda.CUDAGraph()
                if self.generator is not None:
                    self.graph.register_generator_state(self.generator)
                self.optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(self.graph):
                    self._update(captured=True)
        else:
            self.graph.replay()

    def _update(self, captured: bool = False) -> None:
        if not captured:
            self.optimizer.zero_grad(set_to_none=True)
        batch = self.batches.next()
        half = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if half else contextlib.nullcontext():
            each = self.loss(self.module, batch)
        each.sum().backward()
        self._clip()
        self.rate.copy_(self.rates.index_select(0, self.clock)[0])
        self.optimizer.step()
        self.clock += 1
        self.last_loss.copy_(each.detach().float().expand(self.members))

    def _clip(self) -> None:
        """Shorten each member's gradient to the largest norm allowed, without a look at the others'."""
        if self.settings.clip is None:
            return
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if not self.grouped:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
            return
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
        factor = (self.settings.clip / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
        for g in gradients:
            g.mul_(factor.view(-1, *[1] * (g.ndim - 1)))

    # Evaluations ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _evaluate(self) -> None:
        self.module.eval()
        result = self.result
        healthy = torch.stack([self._per_member(p.isfinite()).all(1) for p in self.parameters]).all(0)
        score = self.last_loss if self.validate is None else self.validate(self.module).detach().float().reshape(-1)
        healthy = healthy & score.isfinite()
        result.diverged |= ~healthy
        running = healthy & ~result.stopped_early & ~result.diverged
        # without validation the last healthy weights are the ones to keep
        better = running & ((score < result.best_score) | (self.validate is None))
        for kept, p in zip(self.best, self.kept_tensors, strict=True):
            choice = better.view(-1, *[1] * (p.ndim - 1)) if self.grouped else better[0]
            kept.copy_(torch.where(choice, p, kept))
        result.best_score = torch.where(better, score, result.best_score)
        result.best_step = torch.where(better, self.step, result.best_step)
        self.stale = torch.where(better, 0, self.stale + 1)
        if self.settings.patience is not None:
            result.stopped_early |= running & (self.stale >= self.settings.patience)
        result.steps = self.step
        result.history.append(
            {
                "step": self.step,
                "loss": _mean_of(self.last_loss, healthy),
                "score": _mean_of(score, healthy),
                "running": int((~result.diverged & ~result.stopped_early).sum()),
            }
        )
        self.finished = result.history[-1]["running"] == 0

    def _per_member(self, p: Tensor) -> Tensor:
        return p.flatten(1) if self.grouped else p.reshape(1, -1)

    @torch.no_grad()
    def keep_best(self) -> None:
        """Give every member its best weights."""
        for p, kept in zip(self.kept_tensors, self.best, strict=True):
            p.copy_(kept)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        result = self.result
        return {
            "identity": self.identity,
            "settings": {k: v for k, v in vars(self.settings).items() if k != "checkpoint_every"},
            "shapes": [list(p.shape) for p in self.parameters],
            "step": self.step,
            "weights": [p.detach() for p in self.parameters],
            "buffers": dict(self.module.named_buffers()),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.state(),
            "generator": torch.get_rng_state() if self.generator is None else self.generator.get_state(),
            "stale": self.stale,
            "last_loss": self.last_loss,
            "clock": self.clock,
            "best_score": result.best_score,
            "best_step": result.best_step,
            "diverged": result.diverged,
            "stopped_early": result.stopped_early,
            "seconds": result.seconds,
            "history": result.history,
        }

    def restore(self, state: dict[str, Any]) -> None:
        mine = self.state()
        for key in ("settings", "shapes"):
            if state[key] != mine[key]:
                raise InputError(f"the checkpoint belongs to another run: its {key} are {state[key]}, not {mine[key]}")
        if state.get("identity") != self.identity:
            raise InputError(
                "the checkpoint belongs to another run, with other data, seeds or method; delete it to start anew, or "
                "name another file"
            )
        with torch.no_grad():
            for target, values in ((self.parameters, state["weights"]), (self.best, state["best"])):
                for p, value in zip(target, values, strict=True):
                    p.copy_(value)
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state["buffers"][name])
            self.clock.copy_(state["clock"])
            self.last_loss.copy_(state["last_loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.batches.restore(state["batches"])
        if self.generator is None:
            torch.set_rng_state(state["generator"])
        else:
            self.generator.set_state(state["generator"])
        self.step, self.stale = state["step"], state["stale"]
        for name in ("best_score", "best_step", "diverged", "stopped_early", "seconds", "history"):
            setattr(self.result, name, state[name])
        self.result.steps = self.step
        self.finished = bool(self.result.history) and self.result.history[-1]["running"] == 0


def _mean_of(x: Tensor, healthy: Tensor) -> float:
    return float(torch.where(healthy, x, 0.0).sum() / healthy.sum()) if bool(healthy.any()) else math.nan
