"""scikit-learn's diabetes table as two CSV files: rows to learn from, and rows to try a model on.

python examples/diabetes_files.py --out out/demo            # writes out/demo/train.csv and out/demo/test.csv
"""

import argparse
from pathlib import Path

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out", help="folder of the files")
    folder = Path(parser.parse_args().out)
    folder.mkdir(parents=True, exist_ok=True)
    table = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    table.insert(0, "patient", range(1, len(table) + 1))
    for name, rows in zip(("train", "test"), train_test_split(table, test_size=100, random_state=0), strict=True):
        rows.sort_index().to_csv(folder / f"{name}.csv", index=False)
        print(f"wrote {folder / f'{name}.csv'}, {len(rows)} rows")


if __name__ == "__main__":
    main()
