"""The public API as a user's program calls it: checked by ``mypy --strict``, and run by ``test_project.py``."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import howsure as hs
from howsure import metrics

Array = NDArray[np.float64]


def table(rows: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (rows, 2))
    return x, x[:, 0] + 0.1 * rng.standard_normal(rows)


def with_an_estimator(x: Array, y: Array, steps: int, folder: Path) -> float:
    model = hs.EvidentialRegressor(members=2, steps=steps, random_state=0).fit(x, y)
    assert_type(model, hs.EvidentialRegressor)
    average = model.predict(x).mean()
    mean, std = model.predict(x, return_std=True)
    assert_type(mean, Array)
    assert_type(std, Array)
    interval = assert_type(model.predict_interval(x, coverage=0.8), Array)
    answer = assert_type(model.predict_distribution(x), hs.Prediction)
    epistemic = answer.epistemic_std
    if epistemic is None:  # as it is for a single network of some methods
        epistemic = np.zeros_like(mean)
    model.save(folder)
    again = assert_type(hs.load(folder), hs.Regressor)
    assert np.array_equal(again.predict(x), mean)
    score = assert_type(metrics.crps(answer, y), float)
    score += metrics.nll(answer, y) + metrics.rmse(answer, y) + metrics.calibration_error(answer, y)
    return score + float(average + std.sum() + interval.sum() + epistemic.sum())


def with_a_network(x: Array, y: Array, steps: int) -> Tensor:
    features, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    body, head = nn.Sequential(nn.Linear(2, 16), nn.ReLU()), hs.NIGHead(16)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
    schedule = hs.schedules.DualAscent(rate=1e-2)
    for _ in range(steps):
        answer: hs.NormalInverseGamma = head(body(features))
        loss = assert_type(hs.evidential_loss(answer, targets, schedule.weight, mask=targets < 10), Tensor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(answer, targets)
    with torch.no_grad():
        predictive: hs.StudentT = head(body(features)).predictive()
    return predictive.icdf(torch.tensor(0.9)) - predictive.mean


def main(rows: int = 2000, steps: int = 1000) -> None:
    x, y = table(rows)
    with TemporaryDirectory() as folder:
        score = with_an_estimator(x, y, steps, Path(folder) / "model")
    margin = with_a_network(x, y, steps)
    if not (np.isfinite(score) and bool((margin > 0).all())):
        raise SystemExit("the answers are not finite")


if __name__ == "__main__":
    main()
