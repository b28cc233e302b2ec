"""The fitted table model as a module: devices, compilers, state, and selections of its networks."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import howsure as hs

X = np.random.default_rng(0).standard_normal((150, 3))


@pytest.fixture(scope="module")
def regressor():
    """Networks that see numbers, bins and trees, with weights, evidence, a width, text, dates and missing values."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "size": X[:, 0],
            "age": np.where(rng.random(150) < 0.1, np.nan, X[:, 1]),
            "town": rng.choice(["Rome", "Oslo", "Bern"], 150),
            "sold": pd.date_range("2019-01-01", periods=150, freq="97h"),
        }
    )
    y = frame["size"] ** 2 + (frame["town"] == "Rome") + 0.1 * rng.standard_normal(150)
    return hs.EvidentialRegressor(members=6, steps=30, random_state=0, device="cpu").fit(frame, y), frame


def leaves(found):
    answer, familiarity = found
    return [*(getattr(answer, name) for name in answer.leaves), familiarity]


def same(first, second, **tolerance):
    return all(
        torch.allclose(a.double(), b.double(), **tolerance) for a, b in zip(leaves(first), leaves(second), strict=True)
    )


@pytest.fixture(scope="module")
def module(regressor):
    model, frame = regressor
    return model.model_, torch.from_numpy(model.encoding_.codes(model.read(frame)))


def test_forward_has_the_parameters_of_each_network(module):
    model, x = module
    answer, familiarity = model(x)
    assert answer.gamma.shape == (len(model.mixture_weights), 150, 1)  # six networks, and perhaps a linear expert
    assert len(answer.gamma) in (6, 7)
    assert familiarity.shape == (6, 150)
    assert answer.gamma.dtype == torch.float64


def test_predict_wraps_forward(regressor, module):
    model, frame = regressor
    answer, _ = module[0](module[1])
    p = hs.Prediction(
        torch.utils._pytree.tree_map(lambda leaf: leaf.squeeze(-1), answer),
        members=0,
        weights=module[0].mixture_weights,
    )
    assert np.allclose(p.mean, model.predict(frame), rtol=1e-12)
    assert model.unfamiliar_below_ == model.model_.unfamiliar_below


def test_exported_program_computes_the_same_for_any_number_of_rows(module):
    model, x = module
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    assert same(program(x), model(x), rtol=1e-12)
    assert same(program(x[:7]), model(x[:7]), rtol=1e-12)


@pytest.mark.extras
def test_compiled_module_computes_the_same(module):
    model, x = module
    assert same(torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-9)


def test_state_dict_holds_all_that_was_learned(module):
    model, x = module
    expected = model(x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in [*other.parameters(), *other.buffers()]:
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    assert not same(other(x), expected)
    with torch.no_grad():  # what follows from the schema and from the nodes of trees is not in the state
        for name, buffer in other.named_buffers():
            if name not in other.state_dict():
                buffer.copy_(dict(model.named_buffers())[name])
    other.load_state_dict(model.state_dict(), strict=True)
    assert all(torch.equal(a, b) for a, b in zip(leaves(other(x)), leaves(expected), strict=True))


def test_tensors_of_a_file_build_the_same_model(module):
    model, x = module
    parts = (model.method, model.networks.activation, model.one_target, model.encoder)
    again = type(model).from_tensors(model.tensors(), *parts)
    assert all(torch.equal(a, b) for a, b in zip(leaves(again(x)), leaves(model(x)), strict=True))


def test_module_in_float32_is_close(module):
    model, x = module
    single = copy.deepcopy(model)
    single.networks.float()
    single.evidence.float()
    assert same(single(x), model(x), rtol=1e-3, atol=1e-4)


def test_selected_networks_are_unchanged(module):
    model, x = module
    whole, some = model(x), model.select([4, 0])(x)
    for a, b in zip(leaves(some), leaves(whole), strict=True):
        assert torch.equal(a, b[[4, 0]])
    assert float(model.select([4, 0]).weights.sum()) == pytest.approx(1)
    assert model.select([1]).members == 1


def test_members_may_have_rows_of_their_own(module):
    model, x = module
    views = model.views(model.features(x))
    rows = torch.stack([torch.arange(k, k + 20) for k in range(6)])
    own, whole = model.from_views(views[rows])[0], model(x)[0]
    for k in range(6):
        assert torch.allclose(own.gamma[k], whole.gamma[k, rows[k]], rtol=1e-12)


@pytest.mark.parametrize("stage", ["evidence", "width", "weights"])
def test_every_stage_can_be_switched_off(module, stage):
    model, x = module
    without = copy.deepcopy(model)
    setattr(without, stage, None)
    answer, familiarity = without(x)
    assert torch.equal(answer.gamma, model(x)[0].gamma) is (stage != "evidence")
    assert (familiarity is None) is (stage == "evidence")
    assert np.isfinite(without.predict(x).std).all()


def test_pickled_and_copied_models_predict_the_same(regressor):
    model, frame = regressor
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(other.predict(frame), model.predict(frame))


def test_model_read_in_inference_mode_predicts(regressor, tmp_path):
    model, frame = regressor
    model.save(tmp_path / "model")
    with torch.inference_mode():
        read = hs.load(tmp_path / "model")
        assert np.array_equal(read.predict(frame), model.predict(frame))
    assert np.array_equal(read.predict(frame), model.predict(frame))


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 4), (0, 9)])
def test_other_number_of_columns_raises(module, shape):
    with pytest.raises(hs.InputError):
        module[0].predict(np.zeros(shape))
