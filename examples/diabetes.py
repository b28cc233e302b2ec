"""scikit-learn's diabetes table: how good are the intervals of a default regressor on rows it has not seen?

python examples/diabetes.py            # writes out/diabetes.png
python examples/diabetes.py --help
"""

import argparse
from pathlib import Path

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import howsure as hs
from howsure.plots import new_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out", help="folder of the figure")
    parser.add_argument("--steps", type=int, help="training steps; by the number of rows unless given")
    settings = parser.parse_args()

    x, y = load_diabetes(return_X_y=True, as_frame=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.5, random_state=0)
    model = hs.EvidentialRegressor(steps=settings.steps, random_state=0).fit(x_train, y_train)
    p = model.predict_distribution(x_test)

    print(f"R² {model.score(x_test, y_test):.3f}")
    for name, value in hs.metrics.summary(p, y_test).items():
        print(f"{name:18s} {value:.3f}")
    folder = Path(settings.out)
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = new_figure(1, 2, (10.0, 3.7))
    intervals = hs.IntervalDisplay.from_predictions(p, y_test, ax=axes[0, 0]).ax_
    low, high = intervals.get_ylim()
    intervals.set_ylim(low, high + 0.25 * (high - low))  # the legend stands above the intervals of the narrowest rows
    hs.CalibrationDisplay.from_predictions(p, y_test, ax=axes[0, 1])
    figure.savefig(folder / "diabetes.png", dpi=110)
    print(f"wrote {folder / 'diabetes.png'}")


if __name__ == "__main__":
    main()
