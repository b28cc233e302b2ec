"""Prediction with Ray on a real cluster of two workers: the rows of the local engine, whatever happens to workers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

import howsure as hs
from howsure.cli import ray_engine
from howsure.cli.rows import predict_frame
from howsure.errors import InputError, InputTypeError
from howsure.io import BATCH_ROWS, read_batches, writing

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray announces changes of its own
pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def table(rows, seed=0):
    """A table whose columns are hard to read in parts: text, categories, and whole numbers missing only at the end."""
    rng = np.random.default_rng(seed)
    count = pd.array(rng.integers(0, 9, rows), dtype="Int64")
    count[-1] = pd.NA
    color = pd.Categorical.from_codes(rng.integers(0, 3, rows), ["red", "green", "blue"])
    code = [None if k > rows - 5 else f"{k:06d}" for k in range(rows)]
    return pd.DataFrame({"x": rng.normal(size=rows), "count": count, "color": color, "code": code})


@pytest.fixture(scope="module")
def model():
    rows = table(200).drop(columns="code")
    return hs.EvidentialRegressor(members=2, steps=50, random_state=0).fit(rows, rows["x"] + (rows["color"] == "red"))


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    importable = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}  # functions of this file, by workers
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=importable)
    yield ray
    ray.shutdown()


@pytest.fixture
def small_spans(monkeypatch):
    monkeypatch.setattr(ray_engine, "SPAN", 1)


def predict_locally(source, output, function):
    with writing(output) as write:
        for frame in read_batches(source):
            write(function(frame))


def check_equal(found, expected):
    pd.testing.assert_frame_equal(pd.read_parquet(found), pd.read_parquet(expected), check_exact=True)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_of_all_kinds_are_those_of_the_local_engine(cluster, model, tmp_path, small_spans):
    function = partial(predict_frame, model, coverage=0.8, keep=["code", "count", "color"])
    table(BATCH_ROWS + 500, 1).to_parquet(tmp_path / "a.parquet", row_group_size=20_000)
    table(3, 2).to_parquet(tmp_path / "b.parquet")
    table(40, 3).to_csv(tmp_path / "c.csv", index=False)
    sources = [tmp_path / name for name in ("a.parquet", "b.parquet", "c.csv")]
    jobs = [(source, tmp_path / "out" / f"{source.stem}.parquet") for source in sources]
    (tmp_path / "out").mkdir()
    done = []
    read = partial(read_batches, numbers=["x", "count"])
    assert ray_engine.predict(jobs, read, function, progress=done.append) == BATCH_ROWS + 543
    assert sum(done) == BATCH_ROWS + 543
    assert names(tmp_path / "out") == ["a.parquet", "b.parquet", "c.parquet"]
    for source, output in jobs:
        expected = tmp_path / f"local_{output.name}"
        with writing(expected) as write:
            for frame in read(source):
                write(function(frame))
        check_equal(output, expected)


class Victim:
    """A function that predicts, but whose first caller at the third batch waits to be killed."""

    def __init__(self, function, folder):
        self.function, self.folder, self.calls = function, folder, 0

    def __call__(self, frame):
        found = self.function(frame)
        self.calls += 1
        (self.folder / f"{os.getpid()}.{self.calls}").touch()
        if self.calls == 2:
            try:
                with (self.folder / "victim").open("x") as file:
                    json.dump(os.getpid(), file)
            except FileExistsError:
                return found
            time.sleep(600)
        return found


def kill_victim(file, killed):
    for _ in range(1200):
        if file.exists() and (text := file.read_text()):
            os.kill(int(text), signal.SIGKILL)
            killed.append(int(text))
            return
        time.sleep(0.1)


def test_killed_worker_loses_nothing(cluster, model, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "SPAN", 2 * BATCH_ROWS)
    source, calls = tmp_path / "in.parquet", tmp_path / "calls"
    calls.mkdir()
    table(6 * BATCH_ROWS + 11).to_parquet(source, row_group_size=BATCH_ROWS)
    function = partial(quick, 3.0)
    killed = []
    killer = threading.Thread(target=kill_victim, args=(calls / "victim", killed))
    killer.start()
    count = ray_engine.predict([(source, tmp_path / "out.parquet")], read_batches, Victim(function, calls))
    killer.join()
    assert count == 6 * BATCH_ROWS + 11
    assert len(killed) == 1
    workers = {name.split(".")[0] for name in names(calls)} - {"victim", str(killed[0])}
    assert len(workers) >= 2  # the other one, and the one that took the place of the victim
    predict_locally(source, tmp_path / "local.parquet", function)
    check_equal(tmp_path / "out.parquet", tmp_path / "local.parquet")
    assert names(tmp_path) == ["calls", "in.parquet", "local.parquet", "out.parquet"]


def quick(factor, frame):
    return pd.DataFrame({"mean": factor * frame["x"], "code": frame["code"]})


def warn_and_fail(frame):
    import warnings

    warnings.warn("a word of the worker", UserWarning, stacklevel=2)
    if len(frame) == 2:
        raise InputError("in.parquet has two rows")
    return frame


def test_error_of_a_table_is_one_sentence_and_leaves_no_file(cluster, tmp_path):
    good, bad, damaged = tmp_path / "good.parquet", tmp_path / "bad.parquet", tmp_path / "damaged.parquet"
    table(3).to_parquet(good)
    table(2).to_parquet(bad)
    damaged.write_bytes(good.read_bytes()[:-100])
    for second, problem in ((bad, r"in\.parquet"), (damaged, "damaged.parquet")):
        jobs = [(good, tmp_path / "a.parquet"), (second, tmp_path / "b.parquet")]
        # a damaged file may stop the work before any batch of the good one is predicted
        warned = (
            pytest.warns(UserWarning, match="worker") if second == bad else warnings.catch_warnings(action="ignore")
        )
        with pytest.raises(InputError, match=problem), warned:
            ray_engine.predict(jobs, read_batches, warn_and_fail)
        assert set(names(tmp_path)) - {"a.parquet"} == {"bad.parquet", "damaged.parquet", "good.parquet"}
        (tmp_path / "a.parquet").unlink(missing_ok=True)  # the first table may be whole before the second is read


def refuse_row_5(frame):
    raise InputTypeError("odd", row=5)


def test_errors_name_rows_of_the_file(cluster, tmp_path, small_spans):
    """Not those of a batch or a span: the second span, which has six rows, begins at row 65,536."""
    source = tmp_path / "in.parquet"
    table(BATCH_ROWS + 6).to_parquet(source, row_group_size=BATCH_ROWS)
    with pytest.raises(InputTypeError, match=r"in\.parquet") as caught:
        ray_engine.predict([(source, tmp_path / "out.parquet")], read_batches, refuse_row_5)
    assert caught.value.row in (5, BATCH_ROWS + 5)
    text = table(BATCH_ROWS + 6)
    text.loc[BATCH_ROWS + 3, "x"] = np.inf
    text.to_csv(tmp_path / "in.csv", index=False)
    model = hs.EnsembleRegressor(members=1, steps=5, device="cpu").fit(table(50)[["x"]], table(50)["x"])
    jobs = [(tmp_path / "in.csv", tmp_path / "out.parquet")]
    with pytest.raises(InputError, match=r"in\.csv") as caught:
        ray_engine.predict(jobs, read_batches, partial(predict_frame, model))
    assert (caught.value.column, caught.value.row) == ("x", BATCH_ROWS + 3)
    assert names(tmp_path) == ["in.csv", "in.parquet"]


def test_output_is_replaced_only_on_request(cluster, tmp_path):
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    table(30).to_parquet(source)
    output.write_text("mine")
    with pytest.raises(InputError):
        ray_engine.predict([(source, output)], read_batches, partial(quick, 1.0))
    with pytest.raises(InputError, match=r"out\.txt"):  # before the work, not after it
        ray_engine.predict([(source, tmp_path / "out.txt")], read_batches, partial(quick, 1.0), progress=pytest.fail)
    assert output.read_text() == "mine"
    assert names(tmp_path) == ["in.parquet", "out.parquet"]
    ray_engine.predict([(source, output)], read_batches, partial(quick, 1.0), replace=True)
    assert np.array_equal(pd.read_parquet(output)["mean"], pd.read_parquet(source)["x"])


def test_interrupt_leaves_nothing(cluster, tmp_path, small_spans):
    source = tmp_path / "in.parquet"
    table(3 * BATCH_ROWS).to_parquet(source, row_group_size=BATCH_ROWS)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ray_engine.predict([(source, tmp_path / "out.parquet")], read_batches, partial(quick, 1.0), progress=interrupt)
    assert names(tmp_path) == ["in.parquet"]


def test_searches_and_folds_go_to_ray(cluster):
    from ray.util.joblib import register_ray

    register_ray()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x[:, 0] + 0.1 * rng.normal(size=60)
    model = hs.EvidentialRegressor(members=1, steps=30, random_state=0)
    alone = cross_val_score(model, x, y, cv=3)
    search = GridSearchCV(model, {"learning_rate": [1e-3, 1e-2]}, cv=2)
    with joblib.parallel_config("ray", n_jobs=2):
        assert np.array_equal(cross_val_score(model, x, y, cv=3), alone)
        best = search.fit(x, y)
    assert np.array_equal(best.cv_results_["mean_test_score"], search.fit(x, y).cv_results_["mean_test_score"])


def processes_marked(mark):
    """Return the commands of living processes that have this text in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:  # it has ended
            continue
    return found


def test_command_line_starts_a_cluster_and_ends_it(model, tmp_path):
    model.save(tmp_path / "model")
    folder = tmp_path / "in"
    folder.mkdir()
    for k in range(3):
        table(20 + k, k).to_parquet(folder / f"{k}.parquet")
    mark = f"HOWSURE_MARK={os.urandom(8).hex()}"
    outputs = {}
    for engine in ("local", "ray"):
        outputs[engine] = tmp_path / engine
        command = ["predict", tmp_path / "model", folder, "-o", outputs[engine], "--keep", "code", "--engine", engine]
        done = subprocess.run(
            [sys.executable, "-m", "howsure.cli", *map(str, command)],
            capture_output=True, text=True, check=False, env=os.environ | dict([mark.split("=")]),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    for k in range(3):
        check_equal(outputs["ray"] / f"{k}.parquet", outputs["local"] / f"{k}.parquet")
    for _ in range(50):
        if not (left := processes_marked(mark)):
            break
        time.sleep(0.2)
    assert left == []


def test_without_ray_the_command_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    table(3).to_parquet(tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"\[ray\]"):
        ray_engine.predict([(tmp_path / "in.parquet", tmp_path / "out.parquet")], read_batches, partial(quick, 1.0))
    assert names(tmp_path) == ["in.parquet"]
