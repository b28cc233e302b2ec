"""Settings and result of a training run, and the device that it runs on."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from howsure.errors import InputError

__all__ = ["Settings", "Training", "resolve_device", "seeded"]


@dataclass(frozen=True)
class Settings:
    """Settings of a training run with AdamW.

    Args:
        steps: number of training steps.
        learning_rate: the largest learning rate, reached after the warm-up.
        weight_decay: AdamW's weight decay.
        warmup: share of the steps, in [0, 1), in which the learning rate rises linearly from 0.
        schedule: "cosine" lowers the learning rate to 0 at the end; "constant" keeps it.
        decay: share of the steps, in (0, 1], in which "cosine" lowers it: all after the warm-up, or only the last.
        averaging: share of the steps so far, in [0, 1), over which weights are averaged before they are scored and
            kept. The share falls with the learning rate. 0 takes the last weights. An average stands in for a falling
            learning rate, and needs no last step to be planned for.
        clip: largest norm of a member's gradient; None does not clip.
        evaluate_every: steps between evaluations, at which the score decides on the best weights. With ``plateau``
            there are four more before the first, because networks are best almost at once where targets are noise.
        patience: number of evaluations without improvement after which a member stops; None never stops.
        plateau: all members stop once the mean of their best scores has fallen by less than ``least_gain`` over this
            share of the steps so far, and over at least five evaluations and 200 steps. It is a quarter of all steps if
            the score is hardly better than the score of a constant. 0 never stops them, nor does a run without
            validation.
        least_gain: smallest fall of the score, in its unit, that counts for ``plateau``.
        precision: "float32", or "bfloat16" to run the network under autocast; heads and losses stay in float32.
        checkpoint_every: evaluations between checkpoints.

    >>> Settings(steps=100, learning_rate=1e-2).schedule
    'cosine'
    """

    steps: int = 4000
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup: float = 0.05
    schedule: str = "cosine"
    decay: float = 1.0
    averaging: float = 0.0
    clip: float | None = 10.0
    evaluate_every: int = 100
    patience: int | None = None
    plateau: float = 0.0
    least_gain: float = 0.003
    precision: str = "float32"
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "learning_rate", "evaluate_every", "checkpoint_every", "decay"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be greater than 0, got {getattr(self, name)}")
        for name in ("warmup", "averaging", "plateau"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is a share of the steps in [0, 1), got {getattr(self, name)}")
        if self.decay > 1:
            raise InputError(f"decay is a share of the steps in (0, 1], got {self.decay}")
        for name, known in (("schedule", ("cosine", "constant")), ("precision", ("float32", "bfloat16"))):
            if getattr(self, name) not in known:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; known are {', '.join(known)}")

    @property
    def first_evaluations(self) -> int:
        """Steps between evaluations up to the first regular one."""
        return max(1, self.evaluate_every // 5) if self.plateau else self.evaluate_every

    def rate(self, step: Tensor) -> Tensor:
        """Return the learning rates of these steps, counted from 0, in float32."""
        step = step.float()
        warm = max(1, round(self.warmup * self.steps))
        rising = ((step + 1) / warm).clamp(max=1)
        if self.schedule == "constant":
            return self.learning_rate * rising
        start = max(warm, round((1 - self.decay) * self.steps))
        progress = ((step - start) / max(1, self.steps - start)).clamp(0, 1)
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
        seconds: duration, including the runs before a resume.
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

    "auto" is CUDA if there is one, else the CPU, and never mps.

    Raises:
        InputError: for a device that is unknown or that this machine does not have.
    """
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):  # the last for a number beyond 64 bits
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device {name!r:.60}; known are auto, cpu, cuda (or cuda:0, …) and mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!s} is not available: this machine has no CUDA device. Use 'auto' or 'cpu'")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps is not available on this machine. Use 'auto' or 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!s} is not available: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, on the CPU and on the device, inside the context.

    Afterwards they are in the state they had before, so that the caller's random numbers do not change.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
