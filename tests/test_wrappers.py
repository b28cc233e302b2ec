"""Tools that look into an answer: dataclasses, dicts, batches, files, copies, processes, checkpoints, transforms."""

import copy
import dataclasses
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.parallel import scatter_gather
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, default_collate

import howsure as hs


def nig(*shape):
    return hs.NormalInverseGamma.from_raw(torch.randn(*shape, 4))


def normal(*shape):
    return hs.Normal(torch.randn(shape), torch.rand(shape) + 0.1)


ANSWERS = {
    "NormalInverseGamma": lambda: nig(5),
    "StudentT": lambda: nig(5).predictive(),
    "StudentT, df near 0": lambda: hs.StudentT(torch.full((5,), 1e-3), torch.randn(5), 1.0),
    "Normal": lambda: normal(5),
    "Mixture": lambda: hs.Mixture(nig(3, 5).predictive()),
    "Mixture, members last": lambda: hs.Mixture(normal(5, 3), dim=-1),
    "Mixture with weights": lambda: hs.Mixture(nig(3, 5).predictive(), weights=torch.tensor([1.0, 0.0, 3.0])),
}
EVERY = pytest.mark.parametrize("name", ANSWERS)


def leaves_of(answer):
    return tree_flatten(answer)[0]


def density(answer, y=0.3):
    return hs.Prediction(answer).log_prob(np.full(5, y))


def tensors_in_fields(x):
    """The tensors that are found by looking into dataclasses only."""
    if isinstance(x, torch.Tensor):
        return [x]
    if dataclasses.is_dataclass(x):
        return [t for field in dataclasses.fields(x) for t in tensors_in_fields(getattr(x, field.name))]
    return []


# Dataclasses --------------------------------------------------------------------------------------------------------


@EVERY
def test_fields_are_the_leaves(name):
    answer = ANSWERS[name]()
    found, leaves = tensors_in_fields(answer), leaves_of(answer)
    assert sorted(map(id, found)) == sorted(map(id, leaves))


@EVERY
def test_replace_makes_the_same_of_the_same_fields(name):
    answer = ANSWERS[name]()
    again = dataclasses.replace(answer)
    assert type(again) is type(answer)
    assert np.allclose(density(again), density(answer), rtol=1e-6)
    assert again.batch_shape == answer.batch_shape


def test_replace_changes_one_field():
    answer = nig(5)
    moved = dataclasses.replace(answer, gamma=answer.gamma + 1)
    assert torch.equal(moved.prediction, answer.prediction + 1)
    assert torch.equal(moved.beta, answer.beta)
    mixture = ANSWERS["Mixture with weights"]()
    assert dataclasses.replace(mixture, weights=None).weights is None


def test_replace_validates_where_the_original_did():
    bad = torch.full((5,), torch.nan)
    with pytest.raises(hs.InputError, match="gamma"):
        dataclasses.replace(hs.NormalInverseGamma(torch.zeros(5), 1.0, 2.0, 1.0), gamma=bad)
    # a wrapper takes apart and rebuilds the answer of a network that has diverged, whose step a scaler then leaves out
    assert dataclasses.replace(nig(5), gamma=bad).gamma.isnan().all()


def test_class_derived_from_ours_is_seen_into_as_well():
    class Mine(hs.NormalInverseGamma):
        pass

    answer = Mine.from_raw(torch.randn(5, 4))
    assert [field.name for field in dataclasses.fields(answer)] == ["gamma", "nu", "alpha_minus_one", "beta"]
    assert type(dataclasses.replace(answer)) is Mine
    some = tree_map(lambda leaf: leaf[:2], answer)
    assert type(some) is Mine
    assert some.batch_shape == (2,)


# Dicts --------------------------------------------------------------------------------------------------------------


def on_dict(function, *parts):
    first = parts[0]
    if isinstance(first, dict):
        return {name: on_dict(function, *(part[name] for part in parts)) for name in first}
    return function(*parts)


@EVERY
def test_dicts_there_and_back(name):
    answer = ANSWERS[name]()
    parts = answer.to_dict()
    for form in (parts, on_dict(lambda t: t.numpy(), parts), on_dict(lambda t: t.tolist(), parts)):
        again = type(answer).from_dict(form)
        assert type(again) is type(answer)
        assert np.allclose(density(again), density(answer), rtol=1e-6)


@EVERY
def test_rows_of_dicts_are_rows_of_the_distribution(name):
    """Slices of every tensor, joined again, as tools do that know nothing of answers."""
    answer = ANSWERS[name]()
    parts = answer.to_dict()
    first, rest = on_dict(lambda t: t[:2], parts), on_dict(lambda t: t[2:], parts)
    assert type(answer).from_dict(first).batch_shape == (2,)
    joined = type(answer).from_dict(on_dict(lambda *t: torch.cat(t), rest, first))
    assert np.allclose(density(joined), np.roll(density(answer), -2), rtol=1e-6)


def test_rows_of_a_mixture_may_have_weights_of_their_own():
    parts = [hs.Mixture(normal(3, 5), weights=torch.rand(3)) for _ in range(2)]
    joined = hs.Mixture.from_dict(on_dict(lambda *t: torch.cat(t), *(p.to_dict() for p in parts)))
    expected = torch.cat([p.cdf(torch.tensor(0.2)) for p in parts])
    assert torch.allclose(joined.cdf(torch.tensor(0.2)), expected)
    assert torch.allclose(joined.icdf(torch.tensor(0.2)), torch.cat([p.icdf(torch.tensor(0.2)) for p in parts]))


def test_dicts_keep_gradients():
    raw = torch.randn(5, 4, requires_grad=True)
    parts = hs.NormalInverseGamma.from_raw(raw).to_dict()
    hs.evidential_loss(hs.NormalInverseGamma.from_dict(parts), torch.zeros(5)).backward()
    alone = raw.detach().clone().requires_grad_()
    hs.evidential_loss(hs.NormalInverseGamma.from_raw(alone), torch.zeros(5)).backward()
    assert torch.allclose(raw.grad, alone.grad, atol=1e-6)


def test_dicts_of_something_else_raise():
    with pytest.raises(hs.InputTypeError, match="from_dict"):
        hs.NormalInverseGamma.from_dict((1, 2))
    with pytest.raises(hs.InputError, match="to_dict"):
        hs.Normal.from_dict(nig(5).to_dict())
    with pytest.raises(hs.InputError, match="StudentT"):
        hs.Mixture.from_dict({"components": nig(5).to_dict()})
    weights = {"components": normal(5, 3).to_dict(), "weights": torch.ones(5)}
    with pytest.raises(hs.InputError, match="weights"):
        hs.Mixture.from_dict(weights)
    with pytest.raises(hs.InputError, match="weights"):
        hs.Mixture.from_dict({**weights, "weights": torch.tensor([[1.0, 1, 1]] * 4 + [[0.0, 0, 0]])})
    with pytest.raises(hs.InputError):
        hs.Mixture.from_dict({})


def test_data_parallel_gathers_dicts(monkeypatch):
    """Its function for tensors needs GPUs; here ``torch.cat`` stands for it, and the rest is torch's."""
    monkeypatch.setattr(scatter_gather.Gather, "apply", lambda device, dim, *parts: torch.cat(parts, dim))
    parts = [nig(5), nig(5)]
    together = hs.NormalInverseGamma.from_dict(scatter_gather.gather([each.to_dict() for each in parts], "cpu"))
    assert together.batch_shape == (10,)
    assert torch.equal(together.nu, torch.cat([each.nu for each in parts]))


# Devices, batches, files, copies ------------------------------------------------------------------------------------


@EVERY
def test_to_and_detach(name):
    answer = ANSWERS[name]()
    double = answer.to(torch.float64)
    assert type(double) is type(answer)
    assert {leaf.dtype for leaf in leaves_of(double)} == {torch.float64}
    back = double.to(torch.float32).cpu().to("cpu", non_blocking=True)
    assert np.allclose(density(back), density(answer), rtol=1e-6)
    assert {leaf.device.type for leaf in leaves_of(answer.to(torch.device("meta")))} == {"meta"}
    with pytest.raises(hs.InputError, match=r"torch\.bfloat16"):
        answer.to(torch.bfloat16)
    raw = torch.randn(5, 4, requires_grad=True)
    attached = hs.NormalInverseGamma.from_raw(raw)
    assert attached.beta.requires_grad
    assert not attached.detach().beta.requires_grad


def test_mixture_keeps_its_weights_in_float64():
    assert ANSWERS["Mixture with weights"]().to(torch.float32).weights.dtype == torch.float64


def collate(rows):
    """The recipe of docs/recipes/distributed.md."""
    return tree_map(lambda *values: default_collate(values), *rows)


@EVERY
def test_collate_recipe_stacks_distributions(name):
    answers = [ANSWERS[name]() for _ in range(3)]
    batch = collate(answers)
    assert type(batch) is type(answers[0])
    assert batch.batch_shape == (3, 5)
    y = torch.full((3, 5), 0.3)
    expected = torch.stack(
        [a.predictive().log_prob(y[0]) if hasattr(a, "predictive") else a.log_prob(y[0]) for a in answers]
    )
    got = batch.predictive().log_prob(y) if hasattr(batch, "predictive") else batch.log_prob(y)
    assert torch.allclose(got, expected)


def test_collate_recipe_in_a_loader():
    whole, y = nig(6), torch.arange(6.0)
    rows = [(tree_map(lambda leaf, k=k: leaf[k], whole), y[k]) for k in range(6)]
    batches = list(DataLoader(rows, batch_size=4, collate_fn=collate))
    assert [answer.batch_shape for answer, _ in batches] == [(4,), (2,)]
    assert torch.equal(torch.cat([answer.gamma for answer, _ in batches]), whole.gamma)


@EVERY
def test_files_and_copies(name):
    answer, file = ANSWERS[name](), io.BytesIO()
    torch.save({"answer": answer}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["answer"]
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(answer)
    for again in (loaded, pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer), copy.copy(answer), queue.get()):
        assert type(again) is type(answer)
        assert all(map(torch.equal, leaves_of(again), leaves_of(answer)))
        assert np.array_equal(density(again), density(answer))


def test_file_of_distributions_runs_no_code():
    class Trap(hs.NormalInverseGamma):
        def __reduce__(self):
            return (print, ("code",))

    file = io.BytesIO()
    torch.save(Trap.from_raw(torch.randn(2, 4)), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)


@pytest.mark.extras
def test_program_with_only_the_library_reads_saved_distributions(tmp_path):
    torch.save(nig(5), tmp_path / "answer.pt")
    code = "import sys, torch, howsure.distributions; print(type(torch.load(sys.argv[1], weights_only=True)).__name__)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "answer.pt")], capture_output=True, text=True)
    assert done.stdout.split() == ["NormalInverseGamma"], done.stderr


def test_distribution_with_a_graph_is_copied_detached():
    answer = hs.NormalInverseGamma.from_raw(torch.randn(5, 4, requires_grad=True))
    with pytest.raises(RuntimeError):
        copy.deepcopy(answer)
    assert torch.equal(copy.deepcopy(answer.detach()).nu, answer.nu)


# Checkpoints, nested tensors, modes ---------------------------------------------------------------------------------


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.SiLU(), hs.NIGHead(8))


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


@pytest.fixture
def plain():
    """A network's inputs, targets and gradients without any wrapper."""
    module, x, y = net(), torch.randn(6, 3), torch.randn(6)
    hs.evidential_loss(module(x), y).backward()
    return x, y, gradients(module)


def test_checkpoints_that_are_not_reentrant_return_distributions(plain):
    x, y, expected = plain
    module = net()
    hs.evidential_loss(checkpoint(module, x, use_reentrant=False), y).backward()
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(gradients(module), expected, strict=True))


def test_reentrant_checkpoints_return_raw_outputs(plain):
    """They know only tensors and tuples; an answer would come back without its graph."""
    x, y, expected = plain
    module = net()

    def raw(x):
        return module[2].raw(module[:2](x))

    x = x.requires_grad_()  # what a reentrant checkpoint needs
    answer = hs.NormalInverseGamma.from_raw(checkpoint(raw, x, use_reentrant=True))
    hs.evidential_loss(answer, y).backward()
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(gradients(module), expected, strict=True))
    lost = checkpoint(module, x, use_reentrant=True)
    assert not lost.gamma.requires_grad
    with pytest.raises(RuntimeError):
        hs.evidential_loss(lost, y).backward()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_of_nested_tensors_the_rows_are_passed():
    lengths, module = (2, 4), net()
    sequences = [torch.randn(n, 3) for n in lengths]
    targets = [torch.randn(n) for n in lengths]
    x = torch.nested.nested_tensor(sequences, layout=torch.jagged)
    y = torch.nested.nested_tensor(targets, layout=torch.jagged)
    got = hs.evidential_loss(module(x.values()), y.values())
    assert torch.allclose(got, hs.evidential_loss(module(torch.cat(sequences)), torch.cat(targets)))


def test_distributions_made_in_other_modes():
    module, x = net(), torch.randn(4, 3)
    with torch.inference_mode():
        answer = module(x)
        assert type(dataclasses.replace(answer)) is hs.NormalInverseGamma
        again = hs.NormalInverseGamma.from_dict(answer.to_dict())
    with torch.no_grad():
        assert torch.equal(again.gamma, module(x).gamma)
    half = copy.deepcopy(module).bfloat16()
    answer = half(x.bfloat16())
    assert {leaf.dtype for leaf in leaves_of(answer)} == {torch.float32}
    assert dataclasses.replace(answer, gamma=answer.gamma.bfloat16()).gamma.dtype == torch.float32


# Quantiles of mixtures under transforms -----------------------------------------------------------------------------


def quantile(raw, q, weights=None):
    predictive = hs.NormalInverseGamma.from_raw(raw).predictive()
    return hs.Mixture(predictive, weights=weights, validate_args=False).icdf(q)


@pytest.mark.parametrize("weights", [None, torch.tensor([0.2, 0.0, 0.8])])
def test_vmap_of_a_mixtures_quantiles(weights):
    raw, q = torch.randn(3, 5, 4), torch.tensor([0.01, 0.5, 0.9])
    with torch.no_grad():
        expected = torch.stack([quantile(raw, p, weights) for p in q])
        by_level = torch.func.vmap(lambda p: quantile(raw, p, weights))(q)
        by_row = torch.func.vmap(lambda r: quantile(r, q, weights), in_dims=1, out_dims=1)(raw.unsqueeze(2))
        both = torch.func.vmap(
            torch.func.vmap(lambda r, p: quantile(r, p, weights), in_dims=(1, None)), in_dims=(None, 0)
        )(raw, q)
    for got in (by_level, by_row, both):
        assert torch.allclose(got, expected, atol=1e-6)


def test_vmap_of_quantiles_of_normal_members_and_no_rows():
    loc, scale = torch.randn(4, 3), torch.rand(4, 3) + 0.1
    expected = hs.Mixture(hs.Normal(loc, scale)).isf(torch.tensor(0.1))
    got = torch.func.vmap(
        lambda m, s: hs.Mixture(hs.Normal(m, s, validate_args=False), validate_args=False).isf(torch.tensor(0.1)),
        in_dims=1,
    )(loc, scale)
    assert torch.allclose(got, expected)
    assert quantile(torch.randn(3, 0, 4), torch.tensor(0.1)).shape == (0,)
    none = torch.func.vmap(lambda raw: quantile(raw, torch.tensor(0.1)), in_dims=1)(torch.randn(3, 2, 0, 4))
    assert none.shape == (2, 0)


def test_gradients_of_single_rows_of_a_mixtures_quantiles():
    raw, q = torch.randn(3, 5, 4, requires_grad=True), torch.tensor(0.1)
    quantile(raw, q).sum().backward()
    rows = torch.func.vmap(torch.func.grad(lambda r: quantile(r, q)), in_dims=1, out_dims=1)(raw.detach())
    assert torch.allclose(rows, raw.grad, atol=1e-6)


class Quantile(torch.nn.Module):
    def forward(self, raw):
        return quantile(raw, torch.tensor(0.05, device=raw.device))


@pytest.mark.extras
@torch.no_grad()
def test_compile_and_export_of_a_mixtures_quantiles(tmp_path):
    raw = torch.randn(8, 16, 4)
    expected = Quantile()(raw)
    assert torch.allclose(torch.compile(Quantile(), fullgraph=True)(raw), expected, atol=1e-6)
    rows = torch.export.Dim("rows")
    program = torch.export.export(Quantile(), (raw,), dynamic_shapes=({1: rows},))
    torch.export.save(program, tmp_path / "quantile.pt2")
    loaded = torch.export.load(tmp_path / "quantile.pt2").module()
    for count in (1, 5, 16):
        assert torch.allclose(loaded(raw[:, :count]), expected[:count], atol=1e-6)


# Other packages -----------------------------------------------------------------------------------------------------


@pytest.mark.extras
def test_lightning_looks_into_distributions():
    apply_to_collection = pytest.importorskip("lightning_utilities.core.apply_func").apply_to_collection
    raw = torch.randn(5, 4, requires_grad=True)
    answer = hs.NormalInverseGamma.from_raw(raw)
    detached = apply_to_collection({"loss": raw.sum(), "answer": answer}, torch.Tensor, torch.Tensor.detach)
    assert type(detached["answer"]) is type(answer)
    assert not any(leaf.requires_grad for leaf in leaves_of(detached["answer"]))
    assert all(map(torch.equal, leaves_of(detached["answer"]), leaves_of(answer)))


@pytest.mark.extras
def test_accelerate_works_on_dicts():
    operations = pytest.importorskip("accelerate.utils.operations")
    answers = [nig(4), nig(3)]
    joined = operations.concatenate([answer.to_dict() for answer in answers])
    together = hs.NormalInverseGamma.from_dict(operations.convert_to_fp32(joined))
    assert torch.equal(together.gamma, torch.cat([answer.gamma for answer in answers]))
    moved = operations.send_to_device(answers[0], "cpu")
    assert torch.equal(moved.beta, answers[0].beta)


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")  # what other packages warn of is not ours to change
def test_trainer_of_hugging_face_predicts_dicts(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels=None):
            answer = self.net(x)
            loss = None if labels is None else hs.evidential_loss(answer, labels)
            return {"loss": loss, "answer": answer.to_dict()}

    rows = [{"x": torch.randn(3), "labels": torch.randn(())} for _ in range(11)]
    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, per_device_eval_batch_size=4,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", label_names=["labels"],
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    found = hs.NormalInverseGamma.from_dict(trainer.predict(rows).predictions)
    assert found.batch_shape == (11,)
    with torch.no_grad():
        expected = model(torch.stack([row["x"] for row in rows]))["answer"]
    leaves = leaves_of(hs.NormalInverseGamma.from_dict(expected))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(leaves_of(found), leaves, strict=True))
