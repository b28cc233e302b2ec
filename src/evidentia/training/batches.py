"""Where batches come from: the rows of a table for a whole population, or a user's own ``DataLoader``."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from evidentia.errors import InputError

__all__ = ["Batches", "LoaderBatches", "TableBatches", "pad_rows", "random_integers"]


class Batches(Protocol):
    """An endless source of batches with a position that can be saved."""

    static: bool  # whether every batch has one shape and is made on the device, so that a step can be captured

    def next(self) -> tuple[Tensor, ...]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Row numbers of members with different counts as one (M, n) tensor, and the counts. The padding repeats row 0."""
    counts = torch.tensor([len(r) for r in rows], device="cpu")
    if (counts == 0).any():
        raise InputError(f"member {int((counts == 0).nonzero()[0])} has no rows")
    padded = torch.stack([torch.cat([r, r[:1].expand(int(counts.max()) - len(r))]) for r in rows])
    return padded, counts


class TableBatches:
    """For each member a batch of its own rows, drawn with replacement on the device that holds the table.

    The draw is a hash of (seed of the member, step, place in the batch): a member gets the same batches alone and in
    any population, and a run that resumes at a step continues as if it had never stopped.
    """

    static = True

    def __init__(self, tables: Sequence[Tensor], rows: Sequence[Tensor], seeds: Sequence[int], batch_size: int) -> None:
        """Features (N, F), targets (N, …) and what else has N rows; rows and seeds have one entry per member."""
        if len(rows) != len(seeds):
            raise InputError(f"{len(rows)} sets of rows for {len(seeds)} seeds; each member needs one of both")
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        self.tables, device = tuple(tables), tables[0].device
        padded, counts = pad_rows(rows)
        self.rows, self.counts = padded.to(device), counts.to(device).unsqueeze(1)
        seed = torch.tensor(list(seeds), dtype=torch.int64, device=device).unsqueeze(1)
        self.streams = seed * _SEED + torch.arange(batch_size, device=device) * _PLACE
        self.step = torch.zeros((), dtype=torch.int64, device=device)

    def next(self) -> tuple[Tensor, ...]:
        """Of each table a batch per member: (M, B, F) features, (M, B, …) targets, …"""
        chosen = self.rows.gather(1, _hash(self.streams + self.step * _STEP) % self.counts)
        self.step += 1
        return tuple(table[chosen] for table in self.tables)

    def skip(self, steps: int) -> Tensor:
        """The rows of the next ``steps`` batches, (M, steps, B), for someone else to use."""
        ahead = self.step + torch.arange(steps, device=self.step.device).view(-1, 1)
        drawn = _hash(self.streams.unsqueeze(1) + ahead * _STEP) % self.counts.unsqueeze(1)
        self.step += steps
        return self.rows.gather(1, drawn.flatten(1)).view_as(drawn)

    def state(self) -> dict[str, Any]:
        return {"step": int(self.step)}

    def restore(self, state: dict[str, Any]) -> None:
        self.step.fill_(state["step"])


_SEED, _STEP, _PLACE = -7046029254386353131, -4417276706812531889, 2685821657736338717  # odd, and far apart


def _hash(h: Tensor) -> Tensor:
    """Non-negative 62-bit integers that look random: the finaliser of SplitMix64."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        # torch shifts arithmetically: cut off the copies of the sign
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return h & ((1 << 62) - 1)


def random_integers(seed: int, step: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Integers of 62 bits that depend on the seed, the step and the place alone."""
    places = torch.arange(math.prod(shape), device=step.device).view(shape)
    return _hash(seed * _SEED % (1 << 63) + step * _STEP + places * _PLACE)


class LoaderBatches:
    """Batches of (features, targets) from a ``DataLoader``, over and over, moved to a device.

    The order is the loader's own. It is repeated on resuming only if the loader shuffles by torch's default generator,
    whose state is kept from the start of the current pass.
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
