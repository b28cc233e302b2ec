"""Six tables of a public benchmark (arXiv 2603.26611) next to its results, by its protocol.

    python benchmarks/bench_anchors.py --anchors anchors.csv --data DATA [--tables Kin8nm] [--rows 1000] [--repeats 4]

The rows are ``RandomState(42).permutation(N)[:n]``, split by scikit-learn's
``train_test_split(test_size=0.25, random_state=rep)``. The file has the columns dataset, n, method, crps. Printed are
our CRPS and coverage of 90% intervals, the CRPS of TabPFN-2.5 and of the best method in the file, CPU seconds of a
fit, the ratio of our CRPS to TabPFN-2.5's, and last the geometric mean of these ratios.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

import howsure as hs

UCI = {"Kin8nm": "kin8nm", "Protein": "protein-tertiary-structure", "NavalPropulsion": "naval-propulsion-plant"}


def read_anchor(name: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features and target of a table of the benchmark."""
    if name in UCI:
        folder = root / "uci" / UCI[name]
        table, columns = np.loadtxt(folder / "data.txt"), np.loadtxt(folder / "index_features.txt").astype(int)
        return table[:, columns], table[:, int(np.loadtxt(folder / "index_target.txt"))]
    if name == "WhiteWine":
        frame = pd.read_csv(root / "shift" / "winequality-white.csv", sep=";")
        return frame.drop(columns="quality").to_numpy(float), frame["quality"].to_numpy(float)
    if name == "BikeSharing":
        frame = pd.read_csv(root / "shift" / "bike_hour.csv")
        left_out = ["instant", "dteday", "casual", "registered", "cnt"]
        return frame.drop(columns=left_out).to_numpy(float), frame["cnt"].to_numpy(float)
    frame = pd.read_csv(root / "shift" / "california_housing.csv")
    target = frame.pop("median_house_value").to_numpy(float)
    return pd.get_dummies(frame).to_numpy(float), target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anchors", required=True, type=Path, help="CSV file with the scores of other methods")
    parser.add_argument("--data", required=True, type=Path, help="data folder, with uci and shift")
    parser.add_argument("--tables", help="names, separated by commas; all tables of the file by default")
    parser.add_argument("--rows", type=int, help="only this size")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--steps", type=int, help="most training steps; default: those of the regressor")
    options = parser.parse_args()
    anchors = pd.read_csv(options.anchors)
    chosen = options.tables.split(",") if options.tables else list(dict.fromkeys(anchors["dataset"]))
    print("table               n       CRPS    TabPFN   best file  cover   CPU s  ratio", flush=True)
    ratios = []
    for (name, rows), group in anchors.groupby(["dataset", "n"]):
        if name not in chosen or options.rows not in (None, rows):
            continue
        x, y = read_anchor(name, options.data)
        some = np.random.RandomState(42).permutation(len(y))[:rows]
        scores, seconds = [], []
        for repeat in range(options.repeats):
            x_train, x_test, y_train, y_test = train_test_split(x[some], y[some], test_size=0.25, random_state=repeat)
            started = time.process_time()
            model = hs.EvidentialRegressor(random_state=repeat, steps=options.steps, verbose=False)
            model.fit(x_train, y_train)
            seconds.append(time.process_time() - started)
            p = model.predict_distribution(x_test)
            scores.append((hs.metrics.crps(p, y_test), hs.metrics.coverage(p, y_test, 0.9)))
        crps, cover = np.mean(scores, axis=0)
        peer = float(group.loc[group["method"] == "TabPFN-2.5", "crps"].iloc[0])
        ratios.append(crps / peer)
        print(
            f"{name:16} {rows:5d} {crps:10.4g} {peer:9.4g} {group['crps'].min():11.4g} {cover:6.3f} "
            f"{np.mean(seconds):7.1f} {ratios[-1]:6.3f}",
            flush=True,
        )
    print(f"at or below TabPFN-2.5 in {sum(ratio <= 1 for ratio in ratios)} of {len(ratios)} cells")
    print(f"geometric mean of the ratios: {np.exp(np.mean(np.log(ratios))):.3f}")


if __name__ == "__main__":
    main()
