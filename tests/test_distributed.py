"""Two processes train like one: wrappers that look into a distribution, and masks of unequal size.

Each case runs in both ranks, on parts of the same rows, and leaves its gradients. The tests compare them with
one process. All cases share two processes, because importing torch takes time.
"""

import contextlib
import datetime
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import howsure as hs

pytestmark = pytest.mark.extras

ROWS = 12


def data():
    """Inputs, targets with NaN where they are missing, and the masks of three kinds of batches."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(ROWS, 3, generator=generator), torch.randn(ROWS, generator=generator)
    few = torch.tensor([True, False, False, False, False, False] + [True] * 5 + [False])
    none = torch.tensor([False] * 6 + [True] * 4 + [False] * 2)
    return x, y, {"all": torch.ones(ROWS, dtype=torch.bool), "few": few, "none": none}


def network(head=hs.NIGHead):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), head(8))


class Answering(nn.Module):
    """A network with a selectable form of output and an unused layer."""

    def __init__(self, form="plain", head=hs.NIGHead):
        super().__init__()
        self.net, self.form = network(head), form
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        answer = self.net(x)
        if self.form == "mixture":
            leaves = {name: torch.stack([leaf, leaf + 0.1], 1) for name, leaf in answer.predictive().to_dict().items()}
            return hs.Mixture(hs.StudentT(**leaves, validate_args=False), dim=1, validate_args=False)
        if self.form == "nested":
            return {"answers": [answer], "other": (x.sum(),)}
        return answer


def loss_of(output, y, **arguments):
    if isinstance(output, dict):
        output = output["answers"][0]
    if isinstance(output, hs.Normal):
        return hs.normal_loss(output, y, **arguments)
    if isinstance(output, hs.NormalInverseGamma):
        return hs.evidential_loss(output, y, **arguments)
    return -output.log_prob(y).mean()


# Cases: (module, x, y of this rank, its rows) → the trained parameters ------------------------------------------------


def ddp(rank, x, y, *, form="plain", head=hs.NIGHead, **settings):
    module = Answering(form, head) if "find_unused_parameters" in settings else network(head)
    wrapped = DistributedDataParallel(module, **settings)
    for _ in range(2):  # a wrapper that lost track of its parameters fails in the second step
        wrapped.zero_grad()
        loss_of(wrapped(x), y).backward()
    return getattr(module, "net", module).parameters()


def fsdp2(rank, x, y, *, kinds, head=hs.NIGHead, **policy):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh, module = init_device_mesh("cpu", (2,)), network(head)
    settings = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(**policy)}
    for layer in reversed(list(module.modules())):  # from the inside out
        if isinstance(layer, kinds):
            fully_shard(layer, **settings)
    fully_shard(module, **settings)
    for _ in range(2):
        module.zero_grad()
        loss_of(module(x), y).backward()
    return module.parameters()


def masked(rank, x, y, *, which, wrap="ddp"):
    mask = data()[2][which][part(rank)]
    y = torch.where(mask, y, torch.nan)
    module = network()
    wrapped = DistributedDataParallel(module) if wrap == "ddp" else sharded(module)
    factor = hs.global_mean_factor(mask)
    (factor * hs.evidential_loss(wrapped(x), y, mask=mask, reduction="sum")).backward()
    return module.parameters()


def sharded(module):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=init_device_mesh("cpu", (2,)))


def accumulated(rank, x, y, *, sync):
    """Micro-batches of 1, 2 and 3 rows, with some targets missing, before one step of the optimizer."""
    mask = data()[2]["few"][part(rank)]
    module = network()
    wrapped = DistributedDataParallel(module)
    parts = [slice(0, 1), slice(1, 3), slice(3, 6)]
    factor = hs.global_mean_factor(*(mask[rows] for rows in parts))
    for k, rows in enumerate(parts):
        last = k == len(parts) - 1
        with contextlib.nullcontext() if last or sync else wrapped.no_sync():
            sums = hs.evidential_loss(wrapped(x[rows]), y[rows], mask=mask[rows], reduction="sum")
            (factor * sums).backward()
    return module.parameters()


def weighted(rank, x, y):
    weight = torch.arange(ROWS).float()[part(rank)]
    module = network(hs.NormalHead)
    wrapped = DistributedDataParallel(module)
    factor = hs.global_mean_factor(weight)
    (factor * hs.normal_loss(wrapped(x), y, sample_weight=weight, reduction="sum")).backward()
    return module.parameters()


def factors(rank, x, y):
    """The factor of numbers, tensors, no argument and a group of one rank."""
    alone = [dist.new_group([k]) for k in range(2)][rank]
    found = [
        hs.global_mean_factor(3 + rank),
        hs.global_mean_factor(torch.tensor(3 + rank), 1),
        hs.global_mean_factor(torch.zeros(4, dtype=torch.bool)),
        hs.global_mean_factor(5, group=alone),
    ]
    return [nn.Parameter(torch.stack(found))]


def part(rank):
    return slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)


UNUSED = {"find_unused_parameters": True}
CASES = {
    "DDP": (ddp, {}),
    "DDP, static graph": (ddp, {"static_graph": True}),
    "DDP, unused parameters": (ddp, UNUSED),
    "DDP, Gaussian": (ddp, {**UNUSED, "head": hs.NormalHead}),
    "DDP, mixture": (ddp, {**UNUSED, "form": "mixture"}),
    "DDP, nested": (ddp, {**UNUSED, "form": "nested"}),
    "FSDP2, root": (fsdp2, {"kinds": ()}),
    "FSDP2, head": (fsdp2, {"kinds": hs.NIGHead}),
    "FSDP2, every linear": (fsdp2, {"kinds": nn.Linear}),
    "FSDP2, Gaussian head": (fsdp2, {"kinds": (nn.Linear, hs.NormalHead), "head": hs.NormalHead}),
    "FSDP2, outputs cast": (fsdp2, {"kinds": hs.NIGHead, "output_dtype": torch.bfloat16}),
    "FSDP2, bfloat16": (fsdp2, {"kinds": hs.NIGHead, "param_dtype": torch.bfloat16}),
    "mask, unequal": (masked, {"which": "few"}),
    "mask, empty rank": (masked, {"which": "none"}),
    "mask, FSDP2": (masked, {"which": "few", "wrap": "fsdp2"}),
    "accumulation": (accumulated, {"sync": False}),
    "accumulation, each synchronised": (accumulated, {"sync": True}),
    "weights": (weighted, {}),
    "factors": (factors, {}),
}


def run_cases(rank, folder):
    """Run every case as one of two ranks; write its gradients, or how it failed."""
    torch.set_num_threads(1)
    x, y, _ = data()
    rows, found = part(rank), {}
    for number, (name, (case, settings)) in enumerate(CASES.items()):
        limit = datetime.timedelta(seconds=120)  # if the other rank fails, this one gives up
        store = f"file://{folder}/store{number}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=limit)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", category=FutureWarning)
                warnings.filterwarnings("ignore", category=DeprecationWarning)
                parameters = case(rank, x[rows], y[rows], **settings)
                found[name] = [p.detach() if p.grad is None else whole(p.grad) for p in parameters]
        except Exception:  # the test shows the error
            found[name] = traceback.format_exc()
        dist.destroy_process_group()
    torch.save(found, f"{folder}/{rank}.pt")


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_cases, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def gradients_of(ranks, name):
    for rank, found in enumerate(ranks):
        assert not isinstance(found[name], str), f"rank {rank}: {found[name]}"
    first, second = (found[name] for found in ranks)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return first


def alone(loss, head=hs.NIGHead):
    """Gradients of one process that sees all rows. The loss is a function of the network."""
    module = network(head)
    loss(module).backward()
    return [p.grad for p in module.parameters()]


def distance(found, expected):
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("DDP", "FSDP2"))])
def test_wrappers_have_the_gradients_of_one_process(ranks, name):
    x, y, _ = data()
    _, settings = CASES[name]
    head = settings.get("head", hs.NIGHead)

    def loss(module):
        if "form" not in settings:
            return loss_of(module(x), y)
        wrapper = Answering(settings["form"], head)
        wrapper.net = module
        return loss_of(wrapper(x), y)

    found, expected = gradients_of(ranks, name), alone(loss, head)
    rounded = "output_dtype" in settings or "param_dtype" in settings
    assert distance(found, expected) < (0.02 if rounded else 1e-6)
    assert max(float(g.abs().max()) for g in found) > 0.05


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("mask, unequal", "few"),
        ("mask, empty rank", "none"),
        ("mask, FSDP2", "few"),
        ("accumulation", "few"),
        ("accumulation, each synchronised", "few"),
    ],
)
def test_masks_of_unequal_size_give_the_mean_over_all_targets(ranks, name, which):
    x, y, masks = data()
    mask = masks[which]
    expected = alone(lambda module: hs.evidential_loss(module(x[mask]), y[mask]))
    assert distance(gradients_of(ranks, name), expected) < 1e-6
    # a mean over each rank's own targets is something else
    halves = [part(0), part(1)]
    own = [alone(lambda m, r=r: hs.evidential_loss(m(x[r]), y[r], mask=mask[r])) for r in halves]
    assert distance([(a + b) / 2 for a, b in zip(*own, strict=True)], expected) > 1e-3


def test_sample_weights_give_the_weighted_mean(ranks):
    x, y, _ = data()
    weight = torch.arange(ROWS).float()
    expected = alone(lambda m: hs.normal_loss(m(x), y, sample_weight=weight), hs.NormalHead)
    assert distance(gradients_of(ranks, "weights"), expected) < 1e-6


def test_factor_of_one_process_counts_beyond_half_precision():
    for dtype in (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32):
        assert 1 / hs.global_mean_factor(torch.ones(100_001, dtype=dtype)) == pytest.approx(100_001, rel=1e-6)


def test_factor_is_ranks_over_targets(ranks):
    assert torch.allclose(gradients_of(ranks, "factors")[0], torch.tensor([2 / 7, 2 / 9, 0.0, 1 / 5]))
