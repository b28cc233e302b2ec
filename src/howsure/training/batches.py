"""Sources of batches: the rows of a table for a whole population, or a user's own ``DataLoader``."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from howsure.errors import InputError

__all__ = ["Batches", "HashedBatches", "LoaderBatches", "TableBatches", "pad_rows", "random_integers"]


class Batches(Protocol):
    """Interface of an endless source of batches whose position can be saved.

    ``static`` is true if all batches have the same shape and are made on the device, so that a CUDA graph can
    capture a training step.
    """

    static: bool

    def next(self) -> tuple[Tensor, ...]:
        """Return the next batch."""

    def state(self) -> dict[str, Any]:
        """Return the position, as plain values and tensors, for a checkpoint."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a position that :meth:`state` returned."""


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows of M members as one tensor, and how many each has.

    Args:
        rows: row numbers of each member, (nᵢ,).

    Returns:
        The row numbers, (M, max nᵢ), where shorter ones are padded with their first row; and the counts nᵢ, (M,).
    """
    counts = torch.tensor([len(r) for r in rows], device="cpu")
    if (counts == 0).any():
        raise InputError(f"member {int((counts == 0).nonzero()[0])} has no rows")
    padded = torch.stack([torch.cat([r, r[:1].expand(int(counts.max()) - len(r))]) for r in rows])
    return padded, counts


class HashedBatches:
    """Base of sources whose draws are a hash of seed and step, so that a run which resumes gets the same batches.

    Args:
        batch_size: rows in a batch, at least 1.
        device: where the data lie and batches are made.
    """

    static = True

    def __init__(self, batch_size: int, device: torch.device) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}", value=batch_size)
        self.batch_size = batch_size
        self.step = torch.zeros((), dtype=torch.int64, device=device)

    def state(self) -> dict[str, Any]:
        return {"step": int(self.step)}

    def restore(self, state: dict[str, Any]) -> None:
        self.step.fill_(state["step"])


class TableBatches(HashedBatches):
    """Batches of table rows for a population: each member draws from its own rows, with replacement.

    A draw is a hash of the member's seed, the step and the position in the batch, so that a member gets the same
    batches alone and in any population.

    Args:
        tables: features (N, F), targets (N, …) and any other tensors with N rows, on one device.
        rows: row numbers each member draws from.
        seeds: one seed per member.
        batch_size: rows in a member's batch.
    """

    def __init__(self, tables: Sequence[Tensor], rows: Sequence[Tensor], seeds: Sequence[int], batch_size: int) -> None:
        if len(rows) != len(seeds):
            raise InputError(f"{len(rows)} sets of rows for {len(seeds)} seeds; each member needs one of both")
        self.tables, device = tuple(tables), tables[0].device
        super().__init__(batch_size, device)
        padded, counts = pad_rows(rows)
        self.rows, self.counts = padded.to(device), counts.to(device).unsqueeze(1)
        seed = torch.tensor(list(seeds), dtype=torch.int64, device=device).unsqueeze(1)
        self.streams = seed * _SEED + torch.arange(batch_size, device=device) * _POSITION

    def next(self) -> tuple[Tensor, ...]:
        """Return a batch per member of each table: (M, B, F) features, (M, B, …) targets, …"""
        chosen = self.rows.gather(1, _hash(self.streams + self.step * _STEP) % self.counts)
        self.step += 1
        return tuple(table[chosen] for table in self.tables)

    def skip(self, steps: int) -> Tensor:
        """Return the row numbers of the next ``steps`` batches, (M, steps, B), and skip these batches."""
        ahead = self.step + torch.arange(steps, device=self.step.device).view(-1, 1)
        drawn = _hash(self.streams.unsqueeze(1) + ahead * _STEP) % self.counts.unsqueeze(1)
        self.step += steps
        return self.rows.gather(1, drawn.flatten(1)).view_as(drawn)


# odd multipliers that keep the hash arguments of different seeds, steps and positions far apart
_SEED, _STEP, _POSITION = -7046029254386353131, -4417276706812531889, 2685821657736338717


def _hash(h: Tensor) -> Tensor:
    """Return 62-bit pseudo-random integers ≥ 0: a hash by the finaliser of SplitMix64."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        # torch's shift copies the sign bit; mask the copies
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return h & ((1 << 62) - 1)


def random_integers(seed: int, step: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return pseudo-random 62-bit integers that depend on the seed, the step and the position in ``shape`` alone."""
    positions = torch.arange(math.prod(shape), device=step.device).view(shape)
    return _hash(seed * _SEED % (1 << 63) + step * _STEP + positions * _POSITION)


class LoaderBatches:
    """Batches (features, targets) of a ``DataLoader``, which is read again and again, moved to a device.

    A run that resumes gets the same batches only if the loader shuffles by torch's global generator: a checkpoint keeps
    the state of that generator at the start of the current pass.

    Args:
        loader: an iterable of pairs (features, targets).
        device: the device of the module.
    """

    static = False

    def __init__(self, loader: Iterable[Sequence[Tensor]], device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.done = 0
        self.generator = torch.get_rng_state()
        self.iterator: Iterator[Sequence[Tensor]] | None = None

    def next(self) -> tuple[Tensor, Tensor]:
        if self.iterator is None:
            self.generator = torch.get_rng_state()
            self.iterator, self.done = iter(self.loader), 0
        batch = next(self.iterator, None)
        if batch is None:
            if self.done == 0:
                raise InputError(
                    "the loader gives no batches; is its data set empty, or smaller than drop_last allows?"
                )
            self.iterator = None
            return self.next()
        self.done += 1
        x, y = batch
        return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "generator": self.generator}

    def restore(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])
        self.generator, self.done = state["generator"], state["done"]
        self.iterator = iter(self.loader)
        for _ in range(self.done):
            next(self.iterator)
