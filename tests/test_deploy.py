"""Deploy: the numbers of Prediction, in Python and where howsure is not."""

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
from howsure.deploy import Summaries, summaries
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


@torch.no_grad()
def test_one_network_in_the_units_of_y():
    net, x = network(), torch.randn(20, 5)
    deploy = hs.Deploy(net, loc=2000.0, scale=3.0, coverage=0.5)
    found = deploy(x)
    assert list(found) == NAMES
    assert not found["mean"].requires_grad
    assert_agrees(found, hs.Prediction(net(x).affine(2000.0, 3.0)), 0.5)


@torch.no_grad()
@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.999])
def test_extreme_parameters(coverage):
    raw = extreme_raw(300)
    found = hs.Deploy(Raw(hs.NormalInverseGamma), coverage=coverage)(raw)
    assert_agrees(found, hs.Prediction(hs.NormalInverseGamma.from_raw(raw)), coverage)
    raw = extreme_raw(300, 7)
    found = hs.Deploy(Raw(hs.NormalInverseGamma), coverage=coverage, members=1)(raw)
    assert_agrees(found, hs.Prediction(hs.NormalInverseGamma.from_raw(raw), members=1), coverage)


@torch.no_grad()
def test_mixture_of_a_list_and_of_a_dimension_with_weights():
    nets, x = nn.ModuleList(network(k) for k in range(4)), torch.randn(9, 5)
    answer = together(nets, x).affine(1.0, 2.0)
    assert_agrees(hs.Deploy(nets, loc=1.0, scale=2.0)(x), hs.Prediction(answer, members=0))
    weights = [3.0, 0.0, 1.0, 1.0]
    assert_agrees(hs.Deploy(nets, loc=1.0, scale=2.0, weights=weights)(x), hs.Prediction(answer, 0, weights))
    # one that counts is one network, whatever the others say
    one = hs.Prediction(answer, 0, [0.0, 0.0, 1.0, 0.0])
    answer.gamma[0] = answer.nu[1] = torch.nan
    assert_agrees(summaries(answer, members=0, weights=[0.0, 0.0, 1.0, 0.0]), one)


@torch.no_grad()
def test_gaussian_answers():
    net, x = network(head=hs.NormalHead(32)), torch.randn(9, 5)
    found = hs.Deploy(net)(x)
    assert "epistemic_std" not in found
    assert_agrees(found, hs.Prediction(net(x)))
    nets = [network(k, hs.NormalHead(32)) for k in range(3)]
    assert_agrees(hs.Deploy(nets)(x), hs.Prediction(together(nets, x), members=0))


@torch.no_grad()
def test_two_targets_in_their_own_units():
    net, x = network(head=hs.NIGHead(32, targets=2)), 10 * torch.randn(9, 5)
    loc, scale = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    found = hs.Deploy(net, loc=loc, scale=scale.tolist())(x)
    assert_agrees(found, hs.Prediction(net(x).affine(loc, scale)))


@torch.no_grad()
def test_summaries_from_parameters_are_those_of_a_prediction_with_familiarity():
    answer = together([network(k) for k in range(3)], torch.randn(9, 5))
    known = hs.Prediction(answer, members=0, familiarity=torch.rand(9))
    assert known.default_decomposition == "paper"
    found = Summaries(members=0, from_parameters=True)(answer)
    assert_agrees({**found, "familiarity": known.familiarity}, known)


@torch.no_grad()
def test_a_mixture_and_a_student_t_as_answer():
    each = together([network(k) for k in range(3)], torch.randn(9, 5)).predictive()
    for weights in (None, torch.tensor([1.0, 2.0, 3.0])):
        mixture = hs.Mixture(each, weights=weights)
        assert_agrees(summaries(mixture), hs.Prediction(mixture))
    one = hs.StudentT(5.0, torch.randn(4), 2.0)
    assert list(summaries(one)) == ["mean", "std", "lower", "upper"]
    assert_agrees(summaries(one), hs.Prediction(one))


@torch.no_grad()
def test_maps_and_shapes():
    net, x = Maps(), torch.randn(2, 3, 16, 24)
    assert_agrees(hs.Deploy(net)(x), hs.Prediction(net(x)))
    assert summaries(hs.NormalInverseGamma(0.0, 1.0, 2.0, 1.0))["lower"].shape == ()
    assert summaries(hs.Normal(torch.empty(0), torch.empty(0)))["upper"].shape == (0,)
    assert "lower" not in summaries(net(x), coverage=None)


@torch.no_grad()
def test_negative_scale_and_precision():
    net, x = network(), torch.randn(9, 5)
    assert_agrees(hs.Deploy(net, scale=-2.0)(x), hs.Prediction(net(x).affine(0.0, -2.0)))
    double = copy.deepcopy(net).double()
    found = hs.Deploy(double)(x.double())
    assert {value.dtype for value in found.values()} == {torch.float64}
    assert_agrees(found, hs.Prediction(double(x.double())))
    half = hs.Deploy(copy.deepcopy(net), loc=2013.7).bfloat16()  # no cast of the module rounds loc
    found = half(x.bfloat16())
    assert found["mean"].dtype == torch.float32
    assert_agrees(found, hs.Prediction(half.networks[0](x.bfloat16()).affine(2013.7, 1.0)))


def test_it_stays_in_evaluation_mode_and_pickles():
    net = nn.Sequential(nn.Linear(5, 32), nn.Dropout(0.5), hs.NIGHead(32))
    deploy = hs.Deploy(net).train()
    assert not deploy.training
    assert not net[1].training
    x = torch.randn(4, 5)
    assert torch.equal(deploy(x)["lower"], pickle.loads(pickle.dumps(deploy))(x)["lower"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coverage": 1.0}, "coverage"),
        ({"coverage": "0.9"}, "coverage"),
        ({"coverage": float("nan")}, "coverage"),
        ({"scale": 0.0}, "scale"),
        ({"loc": float("inf")}, "loc"),
        ({"loc": "far"}, "loc"),
        ({"weights": [1.0]}, "members="),
        ({"members": 0, "weights": [0.0, 0.0]}, "weights"),
        ({"members": 0, "weights": [1.0, -1.0]}, "weights"),
        ({"members": True}, "members"),
        ({"members": 0, "weights": "ab"}, "weights"),
        ({"members": 0, "weights": [[1.0, 2.0]]}, "member"),
    ],
)
def test_arguments_that_cannot_be(arguments, message):
    with pytest.raises((hs.InputError, hs.InputTypeError), match=message):
        hs.Deploy(network(), **arguments)


def test_networks_and_answers_that_cannot_be():
    x = torch.randn(3, 5)
    with pytest.raises(hs.InputTypeError):
        hs.Deploy([])
    with pytest.raises(hs.InputTypeError):
        hs.Deploy(lambda x: x)
    with pytest.raises(hs.InputError, match="members="):
        hs.Deploy([network()], members=0)
    with pytest.raises(hs.InputError, match="weights"):
        hs.Deploy([network(), network()], weights=[1.0, 1.0, 1.0])
    with pytest.raises(hs.InputTypeError, match="Tensor"):
        hs.Deploy(nn.Linear(5, 4))(x)
    with pytest.raises(hs.InputError, match="kind"):
        hs.Deploy([network(), network(head=hs.NormalHead(32))])(x)
    with pytest.raises(hs.InputError, match="dimension"):
        hs.Deploy(network(), members=1)(x)
    with pytest.raises(hs.InputError):
        hs.Deploy(network(), loc=torch.zeros(2))(x)
    with pytest.raises(hs.InputError, match="weights"):
        Summaries(members=0, weights=[1.0, 1.0])(hs.Normal(torch.zeros(3, 2), 1.0))
    with pytest.raises(hs.InputError, match="members="):
        summaries(hs.Mixture(hs.Normal(torch.zeros(3), 1.0)), members=0)


def test_examples_that_cannot_be(tmp_path):
    deploy = hs.Deploy(network())
    with pytest.raises(hs.InputTypeError, match="example"):
        deploy.export()
    with pytest.raises(hs.InputError, match="dimension"):
        deploy.export(torch.randn(3, 5), dynamic=(0, 2))
    with pytest.raises(hs.InputError):
        deploy.export(torch.empty(0, 5))
    with pytest.raises(hs.InputError, match="inputs"):
        deploy.export(torch.randn(3, 5), dynamic=[(0,), (0,)])
    with pytest.raises(hs.InputError):
        hs.deploy.to_package(deploy, tmp_path / "model.so", torch.randn(3, 5))
    with pytest.raises(hs.InputTypeError, match="dynamic"):
        deploy.export(torch.randn(3, 5), dynamic=0)
    with pytest.raises(hs.InputTypeError):
        hs.deploy.to_onnx(network(), tmp_path / "net.onnx", torch.randn(3, 5))
    with pytest.raises(hs.InputError):
        hs.deploy.to_onnx(deploy, tmp_path / "net.onnx", torch.randn(3, 5), input_names=["a", "b"])


@torch.no_grad()
def test_several_inputs_one_row_no_rows_and_threads():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, first, second):
            return self.net(first + second)

    x = torch.randn(6, 5)
    deploy = hs.Deploy([Sum(), Sum()])
    assert deploy(x[0], x[1])["lower"].shape == ()
    assert deploy(x[:0], x[:0])["lower"].shape == (0,)
    assert deploy(torch.full((2, 5), torch.nan), x[:2])["upper"].isnan().all()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: deploy(x, x)["lower"], range(8)))
    assert all(torch.equal(found[0], each) for each in found)
    with torch.device("meta"):
        elsewhere = hs.Deploy(Sum(), loc=1.0, members=0, weights=[1.0, 2.0])
    assert elsewhere.summaries.weights == (1 / 3, 2 / 3)


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
    nets = nn.ModuleList(network(k) for k in range(8))
    deploy = hs.Deploy(nets, loc=3.0, scale=2.0)
    hs.deploy.to_onnx(deploy, tmp_path / "mixture.onnx", torch.randn(1, 5))
    run = session(tmp_path / "mixture.onnx")
    for rows in (1, 2, 500):
        x = torch.randn(rows, 5)
        found = run(x)
        assert list(found) == NAMES
        assert_agrees(found, hs.Prediction(together(nets, x).affine(3.0, 2.0), members=0))
    import onnx

    model = onnx.load(tmp_path / "mixture.onnx")
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [hs.deploy.OPSET]
    assert len(model.graph.node) < 400


@pytest.mark.extras
@torch.no_grad()
def test_onnx_of_the_unet_at_two_sizes(tmp_path):
    net = Maps()
    hs.deploy.to_onnx(hs.Deploy(net), tmp_path / "maps.onnx", torch.randn(1, 3, 32, 40), dynamic=(0, 2, 3))
    run = session(tmp_path / "maps.onnx")
    for shape in ((1, 3, 48, 64), (3, 3, 96, 32)):
        x = torch.randn(shape)
        assert_agrees(run(x), hs.Prediction(net(x)))


@pytest.mark.extras
@torch.no_grad()
@pytest.mark.parametrize("members", [None, 1])
def test_onnx_of_extreme_parameters(tmp_path, members):
    raw = extreme_raw(300) if members is None else extreme_raw(300, 7)
    deploy = hs.Deploy(Raw(hs.NormalInverseGamma), coverage=0.99, members=members)
    hs.deploy.to_onnx(deploy, tmp_path / "raw.onnx", raw[:2])
    assert_agrees(
        session(tmp_path / "raw.onnx")(raw), hs.Prediction(hs.NormalInverseGamma.from_raw(raw), members), 0.99
    )


@pytest.mark.extras
@torch.no_grad()
def test_onnx_of_gaussian_networks_and_two_targets(tmp_path):
    x = 10 * torch.randn(50, 5)
    for net in (network(head=hs.NormalHead(32)), network(head=hs.NIGHead(32, targets=2))):
        hs.deploy.to_onnx(hs.Deploy(net), tmp_path / "net.onnx", x[:2], input_names=["features"])
        assert_agrees(session(tmp_path / "net.onnx")(x), hs.Prediction(net(x)))
    nets = [network(k, hs.NormalHead(32)) for k in range(3)]
    hs.deploy.to_onnx(hs.Deploy(nets, weights=[1, 2, 0]), tmp_path / "net.onnx", x[:2])
    assert_agrees(session(tmp_path / "net.onnx")(x), hs.Prediction(together(nets, x), 0, [1, 2, 0]))


WITHOUT_HOWSURE = """
import sys
sys.modules["howsure"] = None  # an import of it fails
import torch
x = torch.load("x.pt")
program = {load}
torch.save(dict(program(x)), "found.pt")
assert not [name for name in sys.modules if name.startswith("howsure.")]
"""


def run_without_howsure(folder, load, x):
    """Return what a saved program answers in a process that cannot import howsure."""
    torch.save(x, folder / "x.pt")
    code = WITHOUT_HOWSURE.format(load=load)
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, timeout=600)
    return torch.load(folder / "found.pt")


@pytest.mark.extras
def test_exported_program_needs_no_howsure(tmp_path):
    nets, x = nn.ModuleList(network(k) for k in range(3)), torch.randn(11, 5)
    program = hs.Deploy(nets).export(torch.randn(4, 5))
    torch.export.save(program, tmp_path / "program.pt2")
    found = run_without_howsure(tmp_path, 'torch.export.load("program.pt2").module()', x)
    assert_agrees(found, hs.Prediction(together(nets, x), members=0))


@pytest.mark.extras
def test_compiled_package_needs_no_howsure(tmp_path):
    nets, x = nn.ModuleList(network(k) for k in range(3)), torch.randn(11, 5)
    hs.deploy.to_package(hs.Deploy(nets), tmp_path / "package.pt2", torch.randn(4, 5))
    assert [path.name for path in tmp_path.iterdir()] == ["package.pt2"]
    found = run_without_howsure(tmp_path, 'torch._inductor.aoti_load_package("package.pt2")', x)
    assert_agrees(found, hs.Prediction(together(nets, x), members=0))


@pytest.mark.extras
@torch.no_grad()
def test_compiled_package_of_the_unet(tmp_path):
    net = Maps()
    hs.deploy.to_package(hs.Deploy(net), tmp_path / "maps.pt2", torch.randn(2, 3, 32, 40), dynamic=(0, 2, 3))
    loaded = torch._inductor.aoti_load_package(str(tmp_path / "maps.pt2"))
    for shape in ((2, 3, 48, 64), (3, 3, 96, 32)):
        x = torch.randn(shape)
        assert_agrees(loaded(x), hs.Prediction(net(x)))


@pytest.mark.extras
def test_torch_compile():
    nets, x = nn.ModuleList(network(k) for k in range(3)), torch.randn(11, 5)
    compiled = torch.compile(hs.Deploy(nets), fullgraph=True)
    assert_agrees(compiled(x), hs.Prediction(together(nets, x), members=0))


@pytest.mark.extras
def test_a_failed_export_leaves_the_old_file(tmp_path):
    class Refuses(nn.Module):
        def forward(self, x):
            return network()(x if bool(x.sum() > 0) else -x)

    (tmp_path / "net.onnx").write_bytes(b"old")
    with pytest.raises(Exception, match="data-dependent"):
        hs.deploy.to_onnx(hs.Deploy(Refuses()), tmp_path / "net.onnx", torch.randn(2, 5))
    assert (tmp_path / "net.onnx").read_bytes() == b"old"
