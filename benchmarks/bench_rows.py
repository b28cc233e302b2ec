"""Compares the prediction of a Parquet file with that of a tenth of it: rows a second, memory, time per row.

The file has ten columns of numbers, made from a seed in a temporary folder that is removed at the end. The model is
fitted to 1,000 rows: with four networks, which see numbers, bins and trees as the default's twelve do, or with
``--members default``. Each prediction runs in a process of its own: ``howsure predict MODEL FILE -o OUT``. Its memory
is that of all its processes together (pages that several of them share count once for each), above what a process takes
that predicts the first 1,000 rows. Times per row are CPU times, which depend less on what else a machine does than
those by the clock, but do depend on it; so the tenth is predicted before and after all rows. With ``--engine both`` the
outputs of the two engines are compared value by value.

    python benchmarks/bench_rows.py [--rows 10000000] [--engine local|ray|both] [--members 4|default] [--folder DIR]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from howsure.estimators import EvidentialRegressor

COLUMNS = [f"x{k}" for k in range(10)]
GROUP = 1 << 20  # rows of a row group, as pyarrow makes them
FITTED = 1_000


def make_table(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    return pd.DataFrame(rng.normal(size=(rows, len(COLUMNS))), columns=COLUMNS)


def make_file(path: Path, rows: int) -> None:
    """Write a Parquet file a row group at a time; a shorter file has the first rows of a longer one."""
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in COLUMNS])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, GROUP):
            frame = make_table(rng, min(GROUP, rows - first))
            writer.write_table(pa.Table.from_pandas(frame, schema, preserve_index=False))


def fit_model(folder: Path, members: str, steps: int | None) -> None:
    rng = np.random.default_rng(1)
    x = make_table(rng, FITTED)
    noise = 0.3 * (1 + x["x2"].abs()) * rng.normal(size=FITTED)
    options = {} if members == "default" else {"members": int(members)}
    model = EvidentialRegressor(steps=steps, random_state=0, verbose=False, **options)
    model.fit(x, x["x0"] ** 2 + np.sin(3 * x["x1"]) + noise).save(folder)


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started, as Linux tells; those of Ray are among them."""
    found, at = [pid], 0
    while at < len(found):
        for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
        at += 1
    return found


def usage_of(pid: int) -> tuple[int, dict[int, float]]:
    """Return the bytes that a process and its descendants hold and do not share with files, and their CPU seconds."""
    memory, seconds = 0, {}
    for each in descendants(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            times = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        memory += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))
        seconds[each] = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    return memory, seconds


@dataclass(frozen=True)
class Usage:
    """What a command took: seconds by the clock and of all processors, and the largest memory."""

    seconds: float
    cpu: float
    memory: int


def run(model: Path, table: Path, output: Path, engine: str) -> Usage:
    """Predict in a process of its own, and return what that took."""
    command = [sys.executable, "-m", "howsure.cli", "predict", model, table, "-o", output, "--engine", engine]
    start, most, cpu = time.perf_counter(), 0, {}
    with subprocess.Popen([*map(str, command), "--quiet"]) as process:
        while process.poll() is None:
            memory, seconds = usage_of(process.pid)
            most, cpu = max(most, memory), cpu | seconds
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the prediction failed with exit status {process.returncode}")
    return Usage(time.perf_counter() - start, sum(cpu.values()), most)


def same_rows(first: Path, second: Path) -> bool:
    """Return whether two Parquet files have the same rows in the same order, every bit of every number."""
    a, b = (pyarrow.parquet.ParquetFile(path) for path in (first, second))
    if a.schema_arrow != b.schema_arrow or a.metadata.num_rows != b.metadata.num_rows:
        return False
    pairs = zip(a.iter_batches(1 << 16), b.iter_batches(1 << 16), strict=True)
    return all(x.equals(y) for x, y in pairs)


def measure(folder: Path, rows: int, engine: str) -> float:
    """Print what the predictions of a tenth and of all rows take, and return the ratio of their CPU times per row."""
    model = folder / "model"
    few = run(model, folder / "few.parquet", folder / f"few_{engine}.parquet", engine)
    print(f"{engine}: the start takes {few.seconds:.1f} s, {few.cpu:.1f} s of CPU time, {few.memory / 2**20:,.0f} MiB")
    per_row = []
    for k, (name, count) in enumerate((("tenth", rows // 10), ("all", rows), ("tenth", rows // 10))):
        used = run(model, folder / f"{name}.parquet", folder / f"{name}_{engine}_{k}.parquet", engine)
        cpu = max(used.cpu - few.cpu, 1e-3)
        per_row.append(cpu / count)
        print(
            f"{engine}: {count:,} rows in {used.seconds:.1f} s, {count / used.seconds:,.0f} rows a second, "
            f"{count / cpu:,.0f} a second of CPU time after the start; "
            f"{(used.memory - few.memory) / 2**20:,.0f} MiB more than at the start; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return per_row[1] / statistics.mean(per_row[::2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--engine", choices=["local", "ray", "both"], default="local")
    parser.add_argument("--members", default="4", help="networks, or default")
    parser.add_argument("--steps", type=int, help="of the fit; by default those of the library")
    parser.add_argument("--folder", type=Path, help="where to make the files; by default the system's temporary folder")
    options = parser.parse_args()
    if options.rows < 10:
        parser.error("--rows must be at least 10")
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} CPU cores, load {os.getloadavg()[0]:.1f}; members: {options.members}, fitted to {FITTED:,} rows")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        fit_model(folder / "model", options.members, options.steps)
        for label, rows in (("few", min(FITTED, options.rows)), ("tenth", options.rows // 10), ("all", options.rows)):
            make_file(folder / f"{label}.parquet", rows)
        size = (folder / "all.parquet").stat().st_size
        engines = ["local", "ray"] if options.engine == "both" else [options.engine]
        ratios = {engine: measure(folder, options.rows, engine) for engine in engines}
        written = (folder / f"all_{engines[0]}_1.parquet").stat().st_size
        print(f"bytes a row: {size / options.rows:.1f} read, {written / options.rows:.1f} written")
        if len(engines) == 2:
            same = same_rows(folder / "all_local_1.parquet", folder / "all_ray_1.parquet")
            print(f"the rows of both engines are {'identical' if same else 'DIFFERENT'}")
        for engine, ratio in ratios.items():
            print(f"{engine}: CPU time per row of {options.rows:,} rows over that of a tenth of them: {ratio:.4f}")


if __name__ == "__main__":
    main()
