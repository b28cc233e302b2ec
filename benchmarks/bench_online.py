"""Coverage of 90% intervals over the hours after the training rows, with `hs.OnlineConformal` and without.

    python benchmarks/bench_online.py --data DATA [--rows 13903] [--stream 1000] [--steps N] [--rate 0.05]

The table is the hourly bike sharing of Washington, in the order of time. A regressor learns from the first four fifths
of the rows (or the last --rows of them), and is not fitted again. Then each hour has an interval before its target is
observed. Prints the coverage and mean width of the intervals of the model, and of ``OnlineConformal``, and last the
distance of the latter's coverage from .9.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import howsure as hs

COVERAGE = 0.9


def read_bikes(root: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Return features and counts of the hours in the order of time."""
    frame = pd.read_csv(root / "shift" / "bike_hour.csv")
    left_out = ["instant", "dteday", "casual", "registered", "cnt"]
    return frame.drop(columns=left_out), frame["cnt"].to_numpy(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="data folder, with shift")
    parser.add_argument("--rows", type=int, help="most training rows, the latest; all by default")
    parser.add_argument("--stream", type=int, default=1000, help="hours after the training rows")
    parser.add_argument("--steps", type=int, help="most training steps; default: those of the regressor")
    parser.add_argument("--rate", type=float, default=0.05)
    options = parser.parse_args()
    x, y = read_bikes(options.data)
    last = int(0.8 * len(y))
    first = 0 if options.rows is None else max(0, last - options.rows)
    model = hs.EvidentialRegressor(random_state=0, steps=options.steps, device="cpu", verbose=False)
    model.fit(x[first:last], y[first:last])
    stream = slice(last, min(last + options.stream, len(y)))
    p, target = model.predict_distribution(x[stream]), y[stream]
    online, ends = hs.OnlineConformal(COVERAGE, rate=options.rate), []
    for k in range(len(target)):
        row = p[k : k + 1]
        ends.append(online.interval(row)[0])
        online.update(row, target[k : k + 1])
    found = {}
    for name, interval in (("model", p.interval(COVERAGE)), ("OnlineConformal", np.array(ends))):
        found[name] = float(((interval[:, 0] <= target) & (target <= interval[:, 1])).mean())
        print(f"{name:<16} coverage {found[name]:.3f}, mean width {np.diff(interval, axis=1).mean():.1f}")
    distance = abs(found["OnlineConformal"] - COVERAGE)
    print(f"distance of the coverage of {len(target)} hours from {COVERAGE}: {distance:.3f}")


if __name__ == "__main__":
    main()
