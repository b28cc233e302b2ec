"""The training loop, for a population of tabular networks and for any single module."""

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
    """Settings of a training run with AdamW.

    Args:
        steps: number of training steps.
        learning_rate: the largest learning rate, reached after the warm-up.
        weight_decay: AdamW's weight decay.
        warmup: share of the steps, in [0, 1), in which the learning rate rises linearly from 0.
        schedule: "cosine" lowers the learning rate to 0 after the warm-up; "constant" keeps it.
        average: what is scored and kept are weights averaged over about this share of the steps so far, in [0, 1); 0
            takes them as they are. An average stands in for a falling learning rate, and needs no last step to be
            planned for.
        clip: largest norm of a member's gradient; None does not clip.
        evaluate_every: steps between evaluations, at which the score decides on the best weights.
        patience: number of evaluations without improvement after which a member stops; None never stops.
        patience_share: share of the steps so far, in [0, 1), that must have passed without improvement as well, so that
            patience grows with the training.
        least_gain: by how much a score must fall to count as an improvement for the patience.
        precision: "float32", or "bfloat16" to run the network under autocast; heads and losses stay in float32.
        checkpoint_every: evaluations between checkpoints.
    """

    steps: int = 4000
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup: float = 0.05
    schedule: str = "cosine"
    average: float = 0.0
    clip: float | None = 10.0
    evaluate_every: int = 100
    patience: int | None = None
    patience_share: float = 0.0
    least_gain: float = 0.0
    precision: str = "float32"
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "learning_rate", "evaluate_every", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be greater than 0, got {getattr(self, name)}")
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup is a share of the steps in [0, 1), got {self.warmup}")
        for name in ("average", "patience_share"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is a share of the steps so far in [0, 1), got {getattr(self, name)}")
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"unknown schedule {self.schedule!r}; known are cosine, constant")
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f"unknown precision {self.precision!r}; known are float32, bfloat16")

    def rate(self, step: Tensor) -> Tensor:
        """Return the learning rates of these steps, counted from 0, in float32."""
        step = step.float()
        warm = max(1, round(self.warmup * self.steps))
        rising = ((step + 1) / warm).clamp(max=1)
        if self.schedule == "constant":
            return self.learning_rate * rising
        progress = ((step - warm) / max(1, self.steps - warm)).clamp(0, 1)
        return self.learning_rate * rising * 0.5 * (1 + torch.cos(math.pi * progress))


@dataclass
class Training:
    """Result of a training run. Tensors have one entry per member.

    Attributes:
        best_score: smallest validation score; without validation, the last training loss.
        best_step: the step after which that score was reached.
        diverged: whether weights or score became infinite or NaN. Such a member keeps its best weights and is not run
            again.
        stopped_early: whether the member ran out of patience.
        steps: steps taken.
        seconds: duration, including that of the runs before a resume.
        history: for each evaluation the step, the mean training loss and score of healthy members, and how many
            members still run.
    """

    best_score: Tensor
    best_step: Tensor
    diverged: Tensor
    stopped_early: Tensor
    steps: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def summary(self, member: int) -> dict[str, Any]:
        """Return the result of one member as plain values, for a record."""
        best = {"best_step": int(self.best_step[member]), "best_score": float(self.best_score[member])}
        return best | {"diverged": bool(self.diverged[member]), "seconds": self.seconds}


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device of this name: "auto", "cpu", "cuda", "cuda:0", … or "mps".

    "auto" is CUDA if there is one, else the CPU; it is never mps.

    Raises:
        InputError: for a device that is unknown or that this machine does not have.
    """
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
    """Seed torch's global generators, on the CPU and on the device, inside the context.

    Afterwards they are in the state they had before, so that the caller's random numbers do not change.
    """
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

    A member whose weights or score are no longer finite is marked as diverged; the others go on, unaffected. An
    interrupt (Ctrl-C) ends the training, leaves the module with the best weights so far and the checkpoint as last
    written, and is raised again.

    Args:
        module: a :class:`~evidentia.nn.Population`, or any module, which counts as one member.
        batches: :class:`TableBatches`, :class:`ImageBatches` or :class:`LoaderBatches`.
        loss: takes the module and a batch, and returns the loss of each member or a scalar.
        validate: takes the module and returns a score per member, smaller is better. Without it the last weights are
            kept.
        settings: see :class:`Settings`; None takes the defaults.
        fast_steps: replaces the steps between two evaluations. It takes as many steps as it is given learning rates,
            changes parameters and moments in place, and advances the batches.
        checkpoint: file to write while training. If it exists, the run continues from it, to the same result as
            without the interruption. Delete it to start anew.
        identity: identifies data, seeds and method. A checkpoint with another identity is refused.
        progress: show a progress bar on a terminal, or plain lines elsewhere.

    Returns:
        The scores, the best steps, and which members diverged or stopped early.
    """
    run = _Run(module, batches, loss, validate, settings or Settings(), fast_steps, identity)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        _resume(run, path)
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


def _resume(run: "_Run", path: Path) -> None:
    """Restore the run from the checkpoint, or raise an error if that is damaged or belongs to another run."""
    state = load_checkpoint(path, run.device)
    try:
        run.restore(state)
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"checkpoint {path} is damaged ({error!r}); delete it to start anew") from error


class _Run:
    """State of a training run, and its steps, evaluations and checkpoints. Arguments are those of :func:`train`."""

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
        # the generator of the module's noise; None is torch's global one
        self.generator: torch.Generator | None = getattr(module, "generator", None)
        self.members = int(getattr(module, "members", 1))
        self.has_member_axis = hasattr(module, "members")
        self.step = 0
        # learning rates and the step counter are on the device, where a captured graph can read them
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
        self.averages = [p.detach().clone() for p in self.parameters] if settings.average else []
        self.last_loss = torch.zeros(self.members, dtype=torch.float32, device=self.device)
        # tensors whose best state is kept: the weights, and the running statistics of a user's own module
        self.kept_tensors = [*self.parameters, *([] if self.has_member_axis else module.buffers())]
        self.best = [p.detach().clone() for p in self.kept_tensors]
        blank = torch.zeros(self.members, dtype=torch.float32, device=self.device)
        # the score and step that patience counts from: the last ones that were better by the least gain
        self.marked_score = torch.full_like(blank, math.inf)
        self.marked_step = torch.zeros_like(blank)
        self.stale = blank.clone()  # evaluations since then
        self.result = Training(
            best_score=torch.full_like(blank, math.inf),
            best_step=torch.zeros(self.members, dtype=torch.int64, device=self.device),
            diverged=blank.bool(),
            stopped_early=blank.bool(),
        )
        self.finished = False

    # Steps ------------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take the steps up to the next evaluation, and evaluate."""
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
        """Take ``count`` steps by ``fast_steps``, with the optimizer's state where the ordinary steps keep it."""
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
                self.optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(self.graph):
                    self._update(captured=True)
        else:
            self.graph.replay()

    def _update(self, captured: bool = False) -> None:
        """Draw a batch and update the weights. While a CUDA graph is recorded, the caller has reset the gradients."""
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
        self._average()
        self.last_loss.copy_(each.detach().float().expand(self.members))

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averages towards the weights: by 1/(share · steps so far), and all the way while that exceeds 1."""
        if not self.averages:
            return
        part = (1 / (self.settings.average * self.clock[0])).clamp(max=1).float()
        ahead = torch._foreach_sub([p.detach() for p in self.parameters], self.averages)
        torch._foreach_mul_(ahead, part)
        torch._foreach_add_(self.averages, ahead)

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
        healthy = torch.stack([self._per_member(p.isfinite()).all(1) for p in self.parameters]).all(0)
        score = self.last_loss if self.validate is None else self.validate(self.module).detach().float().reshape(-1)
        healthy = healthy & score.isfinite()
        result.diverged |= ~healthy
        running = healthy & ~result.stopped_early & ~result.diverged
        # without validation keep the last healthy weights
        better = running & ((score < result.best_score) | (self.validate is None))
        for kept, p in zip(self.best, self.kept_tensors, strict=True):
            choice = better.view(-1, *[1] * (p.ndim - 1)) if self.has_member_axis else better[0]
            kept.copy_(torch.where(choice, p, kept))
        result.best_score = torch.where(better, score, result.best_score)
        result.best_step = torch.where(better, self.step, result.best_step)
        result.stopped_early |= running & self._impatient(score)
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

    def _impatient(self, score: Tensor) -> Tensor:
        """Return which members have gone without improvement for longer than their patience."""
        settings = self.settings
        gained = score < self.marked_score - settings.least_gain
        self.marked_score = torch.where(gained, score, self.marked_score)
        self.marked_step = torch.where(gained, float(self.step), self.marked_step)
        self.stale = torch.where(gained, 0, self.stale + 1)
        if settings.patience is None:
            return torch.zeros_like(gained)
        waited = self.step - self.marked_step
        return (self.stale >= settings.patience) & (waited >= settings.patience_share * self.step)

    def _per_member(self, p: Tensor) -> Tensor:
        """Return a parameter with one row per member."""
        return p.flatten(1) if self.has_member_axis else p.reshape(1, -1)

    @torch.no_grad()
    def keep_best(self) -> None:
        """Set the module to the best weights of every member."""
        for p, kept in zip(self.kept_tensors, self.best, strict=True):
            p.copy_(kept)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that the next step depends on."""
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
            "averages": self.averages,
            "stale": self.stale,
            "marked_score": self.marked_score,
            "marked_step": self.marked_step,
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
        """Continue from a state, or raise an error if it is that of another run."""
        own = self.state()
        for key in ("settings", "shapes"):
            if state[key] != own[key]:
                raise InputError(f"the checkpoint belongs to another run: its {key} are {state[key]}, not {own[key]}")
        if state.get("identity") != self.identity:
            raise InputError(
                "the checkpoint belongs to another run, with other data, seeds or method; delete it to start anew, or "
                "name another file"
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
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.batches.restore(state["batches"])
        if self.generator is None:
            torch.set_rng_state(state["generator"])
        else:
            self.generator.set_state(state["generator"])
        self.step, self.stale = state["step"], state["stale"]
        self.marked_score, self.marked_step = state["marked_score"], state["marked_step"]
        for name in ("best_score", "best_step", "diverged", "stopped_early", "seconds", "history"):
            setattr(self.result, name, state[name])
        self.result.steps = self.step
        self.finished = bool(self.result.history) and self.result.history[-1]["running"] == 0


def _mean_of(x: Tensor, healthy: Tensor) -> float:
    """Return the mean over healthy members, NaN if there is none."""
    return float(torch.where(healthy, x, 0.0).sum() / healthy.sum()) if bool(healthy.any()) else math.nan
