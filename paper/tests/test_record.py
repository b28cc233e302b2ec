import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import howsure as hs
from howsure_paper.record import environment, find_record, read_record, write_record


def test_record_round_trip(tmp_path):
    record = {
        "numbers": np.array([1.5, 2.0]),
        "diverged": torch.tensor([True]),
        "nested": [{"seed": np.int64(3)}],
        "path": Path("a"),
    }
    path = write_record(tmp_path / "run", {**record, "environment": environment()})
    assert path == tmp_path / "run" / "record.json"
    again = read_record(tmp_path / "run")
    assert again["numbers"] == [1.5, 2.0]
    assert again["diverged"] == [True]
    assert again["nested"] == [{"seed": 3}]
    assert again["environment"]["packages"]["torch"] == torch.__version__
    assert list((tmp_path / "run").iterdir()) == [path]


def test_non_finite_numbers_become_null(tmp_path):
    write_record(tmp_path, {"nll": [1.0, math.nan, math.inf]})
    assert read_record(tmp_path)["nll"] == [1.0, None, None]
    json.loads((tmp_path / "record.json").read_text(), parse_constant=pytest.fail)


def test_missing_record_returns_none(tmp_path):
    assert find_record(tmp_path) is None
    write_record(tmp_path, {"nll": 1.0})
    assert find_record(tmp_path) == read_record(tmp_path)


def test_failed_write_leaves_the_old_record(tmp_path):
    write_record(tmp_path, {"nll": 1.0})
    with pytest.raises(hs.InputError):
        write_record(tmp_path, {"nll": object()})
    assert read_record(tmp_path)["nll"] == 1.0


def test_records_that_cannot_be_read(tmp_path):
    with pytest.raises(hs.InputError):
        read_record(tmp_path)
    (tmp_path / "record.json").write_text('{"schema": 1, ')
    with pytest.raises(hs.InputError, match=r"record\.json"):
        read_record(tmp_path)
    (tmp_path / "record.json").write_text('{"schema": 99}')
    with pytest.raises(hs.InputError):
        read_record(tmp_path)


def test_record_that_is_no_plain_file_raises_at_once(tmp_path):
    import os

    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(hs.InputError):
        read_record(tmp_path)
    with pytest.raises(hs.InputError):
        write_record(tmp_path, {"run": "toy"})
