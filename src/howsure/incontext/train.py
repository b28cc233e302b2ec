r"""Train the network on simulated tables: ``python -m howsure.incontext.train --seconds 600 --out DIR``.

The loss is the mean over query rows of both parts of :func:`howsure.incontext.model.loss`. Matrices of the blocks
are trained by Muon, which steps along the orthogonal factor of the momentum (Jordan et al. 2024), all other weights by
AdamW. The learning rate rises, stays, and in the last part of the run, ``--decay``, falls to 0. The checkpoint is
written before the fall, so that training can go on from it with ``--resume``; ``weights.safetensors`` has the moving
average of the weights at the end, in half precision.
"""

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from howsure.incontext.model import CODE, Encoded, Network, Posterior, encode, loss
from howsure.incontext.prior import FOREIGN, Function, simulate

__all__ = ["Batch", "Trainer", "draw_batch", "main"]

# rows of the tables of a run, each with another number of columns and its CUDA graph
ROWS = (128, 192, 256, 256, 384, 384, 512, 512, 512, 640, 768, 768, 1024, 1024, 1536, 2048)
MAX_COLUMNS = (30, 60)  # log-uniform to the first in all but two shapes, then uniform to the second
ROWS_PER_STEP = 40_960
CELLS_PER_STEP = 450_000
CONTEXT_SHARE = (0.5, 0.92)  # of the rows
ROWS_FOR_RIDGE = 256  # fewer than in use, to save time
BATCHES_AT_ONCE = 4  # simulated together
REUSE = 4  # mean number of steps that see a batch, each time with other column codes and signs
POOL = 48  # batches kept
MATRIX_RATE = 5e-3  # of Muon; a step changes a weight by 0.2 times the rate (root mean square)
OTHER_RATE = 1.5e-3  # of AdamW
MIN_MATRIX = 32  # rows and columns of a matrix that Muon trains
MOMENTUM = 0.95
WEIGHT_DECAY = 0.01
WARM_UP = 200  # steps
AVERAGE = 0.998  # decay of the moving average of the weights
MOMENTS_SHARE = 0.3  # weight of the loss of the moments. Other weights are 1
MAX_GRADIENT = 1.0
MAX_LABEL = 1e4  # units: tables with a mean farther from the base are left out
VALIDATION = ((128, 2), (256, 6), (512, 10), (1024, 10), (768, 25))  # rows and columns of the validation tables
VALIDATION_ROWS = 12_288  # per shape
SECONDS_BETWEEN_VALIDATIONS = 60.0


class Batch(NamedTuple):
    """Encoded tables with the labels of their query rows, in units around the base."""

    encoded: Encoded
    mean: Tensor
    variance: Tensor
    kept: Tensor  # (B, 1) 1 for tables whose numbers are usable, else 0
    log_unit: Tensor  # (B, 1) logarithm of the unit in standard deviations of the target

    def part(self, index: int, count: int) -> "Batch":
        """Return every ``count``-th table, from table ``index``."""
        encoded = [self.encoded.cells[:, index::count], *(tensor[index::count] for tensor in self.encoded[1:])]
        return Batch(Encoded(*encoded), *(tensor[index::count] for tensor in self[1:]))


class Shape(NamedTuple):
    """Size of the tables of a batch."""

    tables: int
    rows: int
    columns: int
    context: int


def draw_batch(shape: Shape, device: torch.device, functions: Sequence[Function] = ()) -> Batch:
    """Simulate tables, split each into context and query rows, and encode them."""
    tables, rows, columns, n = shape
    drawn = simulate(tables, rows, columns, device, functions)
    encoded, experts, base = encode(drawn.x[:, :n], drawn.y[:, :n], drawn.x[:, n:], ROWS_FOR_RIDGE)
    size = experts.spread * experts.unit
    mean = (drawn.mean[:, n:] - experts.centre - experts.spread * base[:, n:]) / size
    variance = drawn.variance[:, n:] / size.square()
    parts = [encoded.cells.transpose(0, 1), *encoded[1:], mean, variance.log()]
    fine = torch.stack([part.flatten(1).isfinite().all(1) for part in parts]).all(0)
    kept = (fine & (mean.abs().amax(1) < MAX_LABEL))[:, None]
    labels = torch.where(kept, mean, 0.0).float(), torch.where(kept, variance, 1.0).float()
    safe = Encoded(*(part.nan_to_num(0.0, 0.0, 0.0) for part in encoded))
    return Batch(safe, *labels, kept.float(), experts.unit.log().float())


def draw_shapes(seed: int, rows_per_step: int = ROWS_PER_STEP, cells_per_step: int = CELLS_PER_STEP) -> list[Shape]:
    """Draw the sizes of the tables of a run."""
    dice, few, shapes = random.Random(seed), len(ROWS) - 2, []
    columns = [round(math.exp((i + dice.random()) / few * math.log(MAX_COLUMNS[0]))) for i in range(few)]
    columns += [dice.randint(*MAX_COLUMNS) for _ in range(2)]
    dice.shuffle(columns)
    for n, c in zip(ROWS, columns, strict=True):
        tables = max(1, min(rows_per_step // n, cells_per_step // (n * (c + 2))))
        shapes.append(Shape(tables, n, c, round(n * dice.uniform(*CONTEXT_SHARE))))
    return shapes


def batches(shapes: Sequence[Shape], seed: int, device: torch.device) -> Iterator[tuple[int, Batch]]:
    """Yield indices of shapes and batches from a pool that is renewed while it is used."""
    dice, pool = random.Random(seed), list[tuple[int, Batch]]()
    torch.manual_seed(seed)
    for step in itertools.count():
        if step % (REUSE * BATCHES_AT_ONCE) == 0 or len(pool) < POOL // 2:
            index = dice.randrange(len(shapes))
            drawn = draw_batch(shapes[index]._replace(tables=shapes[index].tables * BATCHES_AT_ONCE), device)
            pool = (pool + [(index, drawn.part(i, BATCHES_AT_ONCE)) for i in range(BATCHES_AT_ONCE)])[-POOL:]
        yield pool[dice.randrange(len(pool))]


def _views(batch: Batch) -> tuple[Tensor, Tensor]:
    """Draw column codes (B, C, CODE) and signs of the target (B, 1, 1)."""
    like = batch.encoded.column_even
    sign = torch.randint(2, (len(like), 1, 1), device=like.device) * 2.0 - 1
    return torch.randn(*like.shape[:2], CODE, device=like.device), sign


def row_losses(network: nn.Module, batch: Batch, codes: Tensor, sign: Tensor) -> tuple[tuple[Tensor, ...], Posterior]:
    """Return the losses (B, q) and the posterior, for given column codes and signs of the targets."""
    context = batch.encoded.target.shape[1]
    with torch.autocast(batch.mean.device.type, torch.bfloat16, enabled=batch.mean.is_cuda, cache_enabled=False):
        found, _ = network(batch.encoded.mirrored(sign), codes, context)
    return loss(found, batch.mean * sign[..., 0], batch.variance), found._replace(loc=found.loc * sign)


# --- optimizer -----------------------------------------------------------------------------------------------------


def orthogonal(update: Tensor) -> Tensor:
    """Return the approximate orthogonal factor of matrices (…, r, c), by five Newton–Schulz steps in bfloat16."""
    tall = update.shape[-2] > update.shape[-1]
    x: Tensor = update.bfloat16().mT if tall else update.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Optimizer:
    """Muon for the matrices of the blocks, AdamW for all other weights."""

    def __init__(self, network: Network) -> None:
        blocks = [*network.cell_blocks.parameters(), *network.row_blocks.parameters()]
        matrices = [p for p in blocks if p.ndim == 2 and min(p.shape) >= MIN_MATRIX]
        shapes = sorted({tuple(p.shape) for p in matrices})
        self.groups: list[list[Tensor]] = [[p for p in matrices if tuple(p.shape) == shape] for shape in shapes]
        self.momenta = [torch.zeros_like(torch.stack(group)) for group in self.groups]
        chosen = {id(p) for p in matrices}
        others = [p for p in network.parameters() if id(p) not in chosen]
        self.adam = torch.optim.AdamW(others, OTHER_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY, foreach=True)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the weights; ``rate`` multiplies all learning rates."""
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([p.grad for p in group])  # type: ignore[misc]
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, MOMENTUM)).to(momentum.dtype)
            torch._foreach_mul_(group, 1 - MATRIX_RATE * rate * WEIGHT_DECAY)
            size = 0.2 * MATRIX_RATE * rate * math.sqrt(max(group[0].shape))
            torch._foreach_add_(group, list(update.unbind()), alpha=-size)
        self.adam.param_groups[0]["lr"] = OTHER_RATE * rate
        self.adam.step()

    def state(self) -> dict[str, Any]:
        """Return the moments in bfloat16."""
        adam = self.adam.state_dict()["state"].items()
        adam = {k: {n: (v if n == "step" else v.bfloat16()).cpu() for n, v in state.items()} for k, state in adam}
        return {"momenta": [m.bfloat16().cpu() for m in self.momenta], "adam": adam}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the moments."""
        for momentum, saved in zip(self.momenta, state["momenta"], strict=True):
            momentum.copy_(saved)
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state["adam"]})


# --- training ------------------------------------------------------------------------------------------------------


class Trainer:
    """Network, moving average of its weights, optimizer and history.

    Args:
        network: to be trained.
        device: where it is trained.
    """

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network = network.to(device)
        self.optimizer = Optimizer(self.network)
        self.parameters = [p.detach() for p in self.network.parameters()]
        self.average = [p.clone() for p in self.parameters]
        self.gradients = [torch.zeros_like(p) for p in self.parameters]
        for p, gradient in zip(self.network.parameters(), self.gradients, strict=True):
            p.grad = gradient
        self.history: dict[str, Any] = {"steps": 0, "seconds": 0.0, "seeds": [], "devices": []}

    def step(self, batch: Batch, rate: float, graph: "Graph | None" = None) -> Tensor:
        """Take one step of the optimizer, and return the mean of each loss of `row_losses` over the batch, (3,)."""
        rate *= min(1.0, (self.history["steps"] + 1) / WARM_UP)
        codes, sign = _views(batch)
        parts = self.differentiate(batch, codes, sign) if graph is None else graph.replay(batch, codes, sign)
        self.optimizer.step(rate)
        self.history["steps"] += 1
        share = max(1 - AVERAGE, 1 / (1 + self.history["steps"]))
        torch._foreach_lerp_(self.average, self.parameters, share)
        return parts

    def differentiate(self, batch: Batch, codes: Tensor, sign: Tensor) -> Tensor:
        """Compute clipped gradients, and return the mean of each loss of `row_losses` over the batch, (3,)."""
        torch._foreach_zero_(self.gradients)
        losses, _ = row_losses(self.network, batch, codes, sign)
        count = batch.kept.sum().clamp(min=1) * losses[0].shape[1]
        parts = torch.stack([(part * batch.kept).sum() for part in losses]) / count
        (parts[0] + parts[1] + MOMENTS_SHARE * parts[2]).backward()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(self.gradients)))
        scale = torch.where(norm.isfinite(), (MAX_GRADIENT / (norm + 1e-6)).clamp(max=1.0), 0.0)
        torch._foreach_mul_(self.gradients, scale)
        for gradient in self.gradients:
            gradient.nan_to_num_(0.0, 0.0, 0.0)
        return parts.detach()

    def swap(self) -> None:
        """Exchange the weights and their moving average."""
        kept = [p.clone() for p in self.parameters]
        torch._foreach_copy_(self.parameters, self.average)
        torch._foreach_copy_(self.average, kept)

    def save(self, folder: Path) -> None:
        """Write weights, average, moments and history as four files of at most 16 MB."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("weights", "average"):
            torch.save({k: v.cpu() for k, v in self.network.state_dict().items()}, folder / f"{name}.pt")
            self.swap()
        torch.save(self.optimizer.state(), folder / "moments.pt")
        (folder / "history.json").write_text(json.dumps(self.history))

    def load(self, folder: Path) -> None:
        """Restore a training from the folder of :meth:`save`."""
        self.network.load_state_dict(torch.load(folder / "average.pt"))
        self.swap()
        self.network.load_state_dict(torch.load(folder / "weights.pt"))
        self.optimizer.load(torch.load(folder / "moments.pt"))
        self.history |= json.loads((folder / "history.json").read_text())

    def start(self, path: Path) -> None:
        """Copy exported weights; their history is kept as ``before``."""
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            self.history["before"] = {k: json.loads(v) for k, v in file.metadata().items()}
            self.network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        torch._foreach_copy_(self.average, self.parameters)


class Graph:
    """Gradients for tables of one shape as a CUDA graph, so that the processor does not wait for each small kernel."""

    def __init__(self, trainer: Trainer, batch: Batch, pool: Any) -> None:
        self.inputs = [tensor.clone() for tensor in (*batch.encoded, *batch[1:], *_views(batch))]
        *tensors, codes, sign = self.inputs
        static = Batch(Encoded(*tensors[: len(batch.encoded)]), *tensors[len(batch.encoded) :])
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # the set-up of first calls must not be captured
                trainer.differentiate(static, codes, sign)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.parts = trainer.differentiate(static, codes, sign)

    def replay(self, batch: Batch, codes: Tensor, sign: Tensor) -> Tensor:
        """Compute clipped gradients and return the losses (3,)."""
        torch._foreach_copy_(self.inputs, [*batch.encoded, *batch[1:], codes, sign])
        self.graph.replay()
        return self.parts.clone()


def validation(device: torch.device, functions: Sequence[Function], rows: int = VALIDATION_ROWS) -> list[Batch]:
    """Return the fixed validation batches of the training families or of others."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(2**20)
        shapes = [Shape(max(1, rows // n), n, c, round(0.75 * n)) for n, c in VALIDATION]
        return [draw_batch(shape, device, functions) for shape in shapes]


@torch.no_grad()
def score(network: Network, sets: list[Batch]) -> dict[str, float]:
    """Return mean losses of validation tables: the three parts, and the NLL of y in deviations of the target."""
    rows = []
    for batch in sets:
        losses, _ = row_losses(network, batch, *_views(batch))
        kept = batch.kept[:, 0].bool()
        rows.append([part[kept].mean() for part in (*losses, losses[1] + batch.log_unit)])
    return dict(zip(("posterior", "predictive", "moments", "nll"), torch.tensor(rows).mean(0).tolist(), strict=True))


def export(network: Network, history: dict[str, Any], path: Path) -> None:
    """Write the weights in half precision with a header that names their origin."""
    from safetensors.torch import save_file

    state = {name: p.detach().half().cpu().contiguous() for name, p in network.named_parameters()}
    card = {
        **history, "config": network.config, "training data": "simulated tables only", "license": "Apache-2.0",
        "torch": torch.__version__,
    }  # fmt: skip
    save_file(state, str(path), {name: json.dumps(value) for name, value in card.items()})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m howsure.incontext.train", description=__doc__)
    parser.add_argument("--seconds", type=float, required=True, help="time to train")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoint, weights and log")
    parser.add_argument("--resume", type=Path, help="folder with a checkpoint")
    parser.add_argument("--start", type=Path, help="exported weights to start from, with new moments")
    parser.add_argument("--decay", type=float, default=0.0, help="share of the time in which the learning rate falls")
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args(arguments))


def run(settings: argparse.Namespace) -> None:
    """Train, validate and write the results."""
    device, start = torch.device("cuda" if torch.cuda.is_available() else "cpu"), time.monotonic()
    torch.manual_seed(settings.seed)
    trainer = Trainer(Network(), device)
    if settings.resume:
        trainer.load(settings.resume)
    elif settings.start:
        trainer.start(settings.start)
    history, seed, log = trainer.history, settings.seed + trainer.history["steps"], settings.out / "log.jsonl"
    before, due, saved, recent = history["seconds"], SECONDS_BETWEEN_VALIDATIONS, False, list[Tensor]()
    history["seeds"].append(settings.seed)
    history["devices"].append(torch.cuda.get_device_name() if device.type == "cuda" else "cpu")
    settings.out.mkdir(parents=True, exist_ok=True)
    sets = {"training": validation(device, ()), "foreign": validation(device, FOREIGN)}
    shapes, graphs = draw_shapes(seed), dict[int, Graph]()
    memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    for index, batch in batches(shapes, seed, device):
        spent = time.monotonic() - start
        history["seconds"] = before + spent
        rate = min(1.0, (1 - spent / settings.seconds) / settings.decay) if settings.decay else 1.0
        done = spent >= settings.seconds
        if (rate < 1 or done) and not saved:
            trainer.save(settings.out)
            saved = True
        if spent > due or done:
            report(trainer, sets, recent, log)
            due, recent = time.monotonic() - start + SECONDS_BETWEEN_VALIDATIONS, []
        if done:
            break
        if index not in graphs and memory is not None:
            graphs[index] = Graph(trainer, batch, memory)
        recent.append(trainer.step(batch, rate, graphs.get(index)))
    trainer.swap()
    export(trainer.network, history, settings.out / "weights.safetensors")


def report(trainer: Trainer, sets: dict[str, list[Batch]], recent: list[Tensor], log: Path) -> None:
    """Print and log the mean of recent losses and the scores of the averaged weights."""
    trainer.swap()
    scores = {name: score(trainer.network, batch) for name, batch in sets.items()}
    trainer.swap()
    mean = torch.stack(recent).mean(0).tolist() if recent else []
    with log.open("a") as file:
        for stream in (file, sys.stdout):
            print(json.dumps({**trainer.history, "loss": mean, **scores}), file=stream, flush=True)


if __name__ == "__main__":
    main()
