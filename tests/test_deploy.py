"""Exported networks: the numbers of Prediction, in Python and where howsure is not."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import howsure as hs
from howsure.exporting.modules import ExportedNetwork
from howsure.exporting.onnx import OPSET
from howsure.exporting.summaries import Summaries
from howsure.nn import UNet

NAMES = ["mean", "std", "aleatoric_std", "epistemic_std", "lower", "upper"]


def network(seed: int = 0, head: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 32), nn.SiLU(), hs.NIGHead(32) if head is None else head)


class Raw(nn.Module):
    """A network whose input is its raw output, so that a test chooses the parameters."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, raw):
        return self.kind.from_raw(raw)


class Maps(nn.Module):
    """The U-Net with a head of its own, from images to an answer for each pixel."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = UNet(outputs=8, width=8, blocks=4, seed=seed)
        torch.manual_seed(seed)
        self.head = hs.nn.NIGConv2d(8)

    def forward(self, x):
        return self.head(self.body(x))


def inverse_softplus(y):
    return np.where(y > 30, y, np.log(np.expm1(np.minimum(y, 30))))


def extreme_raw(*shape: int) -> torch.Tensor:
    """Return raw outputs with α−1 from 1e-6 to 1e8, ν and β from 1e-3 to 1e3."""
    g = np.random.default_rng(0)
    raw = g.normal(size=(*shape, 4))
    for k, (low, high) in enumerate([(-3, 3), (-6, 8), (-3, 3)], start=1):
        raw[..., k] = inverse_softplus(10 ** g.uniform(low, high, shape))
    return torch.tensor(raw, dtype=torch.float32)


def assert_agrees(found, prediction, coverage=0.9, tolerance=1e-5):
    """Hold named tensors or arrays against a prediction: relative, or relative to the deviation where 0 is near."""
    lower, upper = np.moveaxis(prediction.interval(coverage), -1, 0)
    std = prediction.std
    stated = {"mean": prediction.mean, "lower": lower, "upper": upper}
    for name, expected in stated.items():
        value = np.asarray(found[name])
        assert value.shape == expected.shape
        assert (np.abs(value - expected) <= tolerance * np.maximum(np.abs(expected), std)).all(), name
    for name in ("std", "aleatoric_std", "epistemic_std", "familiarity"):
        expected = getattr(prediction, name)
        assert (expected is None) == (name not in found), name
        if expected is not None:
            np.testing.assert_allclose(np.asarray(found[name]), expected, rtol=tolerance, err_msg=name)


def together(networks, *inputs):
    """Return the answers of several networks as one, members in dimension 0."""
    with torch.no_grad():
        answers = [network(*inputs) for network in networks]
    return torch.utils._pytree.tree_map(lambda *parts: torch.stack(parts), *answers)


class Ensemble(nn.Module):
    """Several networks whose distributions are mixed."""

    def __init__(self, count: int, weights: list[float] | None = None) -> None:
        super().__init__()
        self.networks = nn.ModuleList(network(k) for k in range(count))
        self.weights = weights

    def forward(self, x):
        answers = torch.utils._pytree.tree_map(
            lambda *p: torch.stack(p), *(net(x).predictive() for net in self.networks)
        )
        return hs.Mixture(answers, weights=None if self.weights is None else torch.tensor(self.weights))


class InUnits(nn.Module):
    """A network for standardised targets, in the units of y."""

    def __init__(self, net: nn.Module, loc: float, scale: float) -> None:
        super().__init__()
        self.net, self.loc, self.scale = net, loc, scale

    def forward(self, x):
        return self.net(x).affine(self.loc, self.scale)


@torch.no_grad()
def test_outputs_are_those_of_a_prediction():
    net, x = InUnits(network(), 2000.0, 3.0), torch.randn(20, 5)
    found = ExportedNetwork(net, coverage=0.5)(x)
    assert list(found) == NAMES
    assert not found["mean"].requires_grad
    assert_agrees(found, hs.Prediction(net(x)), 0.5)


@torch.no_grad()
@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.999])
def test_extreme_parameters(coverage):
    raw = extreme_raw(300)
    found = ExportedNetwork(Raw(hs.NormalInverseGamma), coverage=coverage)(raw)
    assert_agrees(found, hs.Prediction(hs.NormalInverseGamma.from_raw(raw)), coverage)


@torch.no_grad()
@pytest.mark.parametrize("weights", [None, [0.6, 0.0, 0.2, 0.2]])
def test_mixture_of_networks(weights):
    net, x = Ensemble(4, weights), torch.randn(9, 5)
    assert_agrees(ExportedNetwork(net)(x), hs.Prediction(net(x)))


@torch.no_grad()
def test_summaries_of_members_with_weights():
    answer, weights = together([network(k) for k in range(4)], torch.randn(9, 5)), torch.tensor([0.6, 0.0, 0.2, 0.2])
    assert_agrees(Summaries().of_members(answer, weights), hs.Prediction(answer, 0, weights))


@torch.no_grad()
def test_gaussian_outputs_have_no_epistemic_part():
    net, x = network(head=hs.NormalHead(32)), torch.randn(9, 5)
    found = ExportedNetwork(net)(x)
    assert "epistemic_std" not in found
    assert_agrees(found, hs.Prediction(net(x)))


@torch.no_grad()
def test_summaries_from_parameters_equal_those_of_a_prediction():
    answer = together([network(k) for k in range(3)], torch.randn(9, 5))
    known = hs.Prediction(answer, members=0, familiarity=torch.rand(9))
    assert known.default_decomposition == "paper"
    found = Summaries(from_parameters=True).of_members(answer)
    assert_agrees({**found, "familiarity": known.familiarity}, known)


@torch.no_grad()
def test_mixture_and_student_t_as_output():
    each = together([network(k) for k in range(3)], torch.randn(9, 5)).predictive()
    for weights in (None, torch.tensor([1.0, 2.0, 3.0])):
        mixture = hs.Mixture(each, weights=weights)
        assert_agrees(Summaries()(mixture), hs.Prediction(mixture))
    one = hs.StudentT(5.0, torch.randn(4), 2.0)
    assert list(Summaries()(one)) == ["mean", "std", "lower", "upper"]
    assert_agrees(Summaries()(one), hs.Prediction(one))


@torch.no_grad()
def test_maps_and_shapes():
    net, x = Maps(), torch.randn(2, 3, 16, 24)
    assert_agrees(ExportedNetwork(net)(x), hs.Prediction(net(x)))
    assert Summaries()(hs.NormalInverseGamma(0.0, 1.0, 2.0, 1.0))["lower"].shape == ()
    assert Summaries()(hs.Normal(torch.empty(0), torch.empty(0)))["upper"].shape == (0,)
    assert "lower" not in Summaries(coverage=None)(net(x))


@torch.no_grad()
def test_double_and_bfloat16():
    net, x = network(), torch.randn(9, 5)
    double = copy.deepcopy(net).double()
    found = ExportedNetwork(double)(x.double())
    assert {value.dtype for value in found.values()} == {torch.float64}
    assert_agrees(found, hs.Prediction(double(x.double())))
    half = ExportedNetwork(copy.deepcopy(net)).bfloat16()
    found = half(x.bfloat16())
    assert found["mean"].dtype == torch.float32
    assert_agrees(found, hs.Prediction(half.network(x.bfloat16())))


def test_it_stays_in_evaluation_mode_and_pickles():
    net = nn.Sequential(nn.Linear(5, 32), nn.Dropout(0.5), hs.NIGHead(32))
    exported = ExportedNetwork(net).train()
    assert not exported.training
    assert not net[1].training
    x = torch.randn(4, 5)
    assert torch.equal(exported(x)["lower"], pickle.loads(pickle.dumps(exported))(x)["lower"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"coverage": 1.0},
        {"coverage": "0.9"},
        {"coverage": float("nan")},
    ],
)
def test_summaries_of_wrong_arguments_raise(arguments):
    with pytest.raises((hs.InputError, hs.InputTypeError)):
        Summaries(**arguments)


def test_wrong_networks_and_outputs_raise():
    x = torch.randn(3, 5)
    with pytest.raises(hs.InputTypeError):
        ExportedNetwork(lambda x: x)
    with pytest.raises(hs.InputTypeError):
        ExportedNetwork(nn.Linear(5, 4))(x)


@pytest.mark.parametrize(
    ("name", "example", "options"),
    [
        ("net.pt2", (), {}),
        ("net.pt2", torch.randn(3, 5), {"dynamic": (0, 2)}),
        ("net.pt2", torch.empty(0, 5), {}),
        ("net.pt2", torch.randn(3, 5), {"dynamic": [(0,), (0,)]}),
        ("net.pt2", torch.randn(3, 5), {"dynamic": 0}),
        ("net.pt2", torch.randn(3, 5), {"input_names": ["a", "b"]}),
        ("net.so", torch.randn(3, 5), {}),
        ("old.pt2", torch.randn(3, 5), {}),
    ],
)
def test_exports_with_wrong_arguments_raise_and_write_nothing(tmp_path, name, example, options):
    (tmp_path / "old.pt2").write_bytes(b"old")
    with pytest.raises((hs.InputError, hs.InputTypeError)):
        hs.export(network(), tmp_path / name, example, **options)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


@torch.no_grad()
def test_several_inputs_one_row_no_rows_and_threads():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, first, second):
            return self.net(first + second)

    x = torch.randn(6, 5)
    exported = ExportedNetwork(Sum())
    assert exported(x[0], x[1])["lower"].shape == ()
    assert exported(x[:0], x[:0])["lower"].shape == (0,)
    assert exported(torch.full((2, 5), torch.nan), x[:2])["upper"].isnan().all()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: exported(x, x)["lower"], range(8)))
    assert all(torch.equal(found[0], each) for each in found)


# What leaves Python ---------------------------------------------------------------------------------------------------


def session(path):
    """Return a function from inputs to the named outputs of an ONNX file."""
    runtime = pytest.importorskip("onnxruntime")
    loaded = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in loaded.get_outputs()]

    def run(*inputs):
        given = {value.name: x.numpy() for value, x in zip(loaded.get_inputs(), inputs, strict=True)}
        return dict(zip(names, loaded.run(None, given), strict=True))

    return run


@pytest.mark.extras
def test_onnx_of_a_mixture_of_eight(tmp_path):
    net = Ensemble(8)
    hs.export(net, tmp_path / "mixture.onnx", torch.randn(1, 5))
    run = session(tmp_path / "mixture.onnx")
    for rows in (1, 2, 500):
        x = torch.randn(rows, 5)
        assert_agrees(run(x), hs.Prediction(net(x).detach()))
    import onnx

    model = onnx.load(tmp_path / "mixture.onnx")
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [OPSET]
    assert len(model.graph.node) < 500


@pytest.mark.extras
@torch.no_grad()
def test_onnx_of_the_unet_at_two_sizes(tmp_path):
    net = Maps()
    hs.export(net, tmp_path / "maps.onnx", torch.randn(1, 3, 32, 40), dynamic=(0, 2, 3))
    run = session(tmp_path / "maps.onnx")
    for shape in ((1, 3, 48, 64), (3, 3, 96, 32)):
        x = torch.randn(shape)
        assert_agrees(run(x), hs.Prediction(net(x)))


@pytest.mark.extras
@torch.no_grad()
def test_onnx_of_extreme_parameters(tmp_path):
    raw = extreme_raw(300)
    hs.export(Raw(hs.NormalInverseGamma), tmp_path / "raw.onnx", raw[:2], coverage=0.99)
    found = session(tmp_path / "raw.onnx")(raw)
    assert_agrees(found, hs.Prediction(hs.NormalInverseGamma.from_raw(raw)), 0.99)


@pytest.mark.extras
@torch.no_grad()
def test_onnx_of_gaussian_networks_and_two_targets(tmp_path):
    x = 10 * torch.randn(50, 5)
    for net in (network(head=hs.NormalHead(32)), network(head=hs.NIGHead(32, targets=2))):
        hs.export(net, tmp_path / "net.onnx", x[:2], input_names=["features"], overwrite=True)
        assert_agrees(session(tmp_path / "net.onnx")(x), hs.Prediction(net(x)))


WITHOUT_HOWSURE = """
import sys
sys.modules["howsure"] = None  # an import of it fails
import torch
x = torch.load("x.pt")
program = torch.export.load("program.pt2").module()
torch.save(dict(program(x)), "found.pt")
assert not [name for name in sys.modules if name.startswith("howsure.")]
"""


def run_without_howsure(folder, x):
    """Return what a saved program answers in a process that cannot import howsure."""
    torch.save(x, folder / "x.pt")
    subprocess.run([sys.executable, "-c", WITHOUT_HOWSURE], cwd=folder, check=True, capture_output=True, timeout=600)
    return torch.load(folder / "found.pt")


@pytest.mark.extras
def test_exported_program_needs_no_howsure(tmp_path):
    net, x = Ensemble(3), torch.randn(11, 5)
    hs.export(net, tmp_path / "program.pt2", torch.randn(4, 5))
    assert_agrees(run_without_howsure(tmp_path, x), hs.Prediction(net(x).detach()))


@pytest.mark.extras
def test_torch_compile():
    net, x = Ensemble(3), torch.randn(11, 5)
    assert_agrees(torch.compile(ExportedNetwork(net), fullgraph=True)(x), hs.Prediction(net(x).detach()))


@pytest.mark.extras
def test_failed_export_leaves_the_old_file(tmp_path):
    class Refuses(nn.Module):
        def forward(self, x):
            return network()(x if bool(x.sum() > 0) else -x)

    (tmp_path / "net.pt2").write_bytes(b"old")
    with pytest.raises(Exception, match="data-dependent"):
        hs.export(Refuses(), tmp_path / "net.pt2", torch.randn(2, 5), overwrite=True)
    assert (tmp_path / "net.pt2").read_bytes() == b"old"
