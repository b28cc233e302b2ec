"""The smallest scales of a model in ONNX Runtime. Part of ``make test-extras``."""

import numpy as np
import pytest
import torch

import howsure as hs

pytestmark = pytest.mark.extras


@pytest.mark.parametrize("raw_beta", [0.0, -20.0, -30.0, -120.0])
def test_exported_standard_deviations_have_the_floor_of_beta(raw_beta, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).standard_normal((100, 2))
    options = {"evidence": "plain", "inputs": "numbers", "calibrated": False}
    model = hs.EvidentialRegressor(members=1, steps=10, random_state=0, device="cpu", **options).fit(x, x[:, 0])
    networks = model.model_.networks
    with torch.no_grad():
        networks.weights[-1][..., 3] = 0
        networks.biases[-1][..., 3] = raw_beta
    session = runtime.InferenceSession(str(hs.export(model, tmp_path / "m.onnx")))
    names = [output.name for output in session.get_outputs()]
    for rows in (x, x[:1], x[:0], np.array([[1e77, 0.0], [1e300, 0.0]])):
        found = dict(zip(names, session.run(None, {"x": rows}), strict=True))
        p = model.predict_distribution(rows)
        assert np.allclose(found["std"], p.std, rtol=1e-6)
        assert np.allclose(np.column_stack([found["lower"], found["upper"]]), p.interval(0.9), rtol=1e-6)
        assert (found["std"] > 0).all()
