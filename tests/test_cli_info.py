import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import typer

import howsure as hs
from faults import commands
from howsure.cli import app as application
from howsure.cli import console, models
from howsure.images import FittedImages
from howsure.likelihoods import Evidential
from howsure.storage import load_model
from shell import houses, numbers, shell, write

SCORES = {
    name: {"rmse": 1.0, "nll": 2.0, "crps": 0.5, "coverage": {"0.9": 0.85}, "calibration_error": None}
    for name in ("evidential", "linear", "constant")
}
RECORD = {
    "rows": 100,
    "held_out": {"how": "a tenth at random", "rows": 10, "learned_from": True},
    "scores": {"price": SCORES},
}


@pytest.fixture(scope="module")
def fitted():
    frame = houses(60)
    model = hs.EvidentialRegressor(members=2, steps=5, random_state=3, device="cpu")
    model.fit(frame[["size", "town", "year"]], frame[["price"]])
    model.model_.unfamiliar_below = 0.5  # these rows are too few to learn it
    return model


@pytest.fixture
def folder(fitted, tmp_path):
    models.save(fitted, tmp_path / "m", RECORD)
    return tmp_path / "m"


# The machine and models -----------------------------------------------------------------------------------------------


def test_versions_and_device(capsys):
    said = shell(capsys, "info", "--device", "cpu")
    assert said.code == 0, said.error
    pairs = dict(line.split("  ", 1) for line in said.out.splitlines() if line)
    assert pairs["torch"].strip() == torch.__version__
    assert pairs["howsure"].strip() == hs.__version__
    assert pairs["device"].strip().startswith("cpu (")
    assert shell(capsys, "info", "--device", "tpu").code == 2


def test_info_of_a_model(folder, fitted, capsys):
    said = shell(capsys, "info", folder)
    assert said.code == 0, said.error
    lines = said.out.splitlines()
    pairs = dict(reversed([line.split("  ", 1) for line in lines if "  " in line]))  # the first line of each name
    assert pairs["model"].strip() == "EvidentialRegressor(device='cpu', members=2, random_state=3, steps=5)"
    assert (pairs["targets"].strip(), numbers(pairs["unfamiliar"])) == ("price", [0.5])
    assert [numbers(line)[0] for line in lines if line.startswith("price: ")] == [10]
    assert numbers(lines[-1]) == [100]
    assert pairs["town"].strip().startswith("category")
    found = json.loads(shell(capsys, "info", folder, "--json").out)["model"]
    assert len(found["training"]["best_step"]) == 2
    assert found["inputs"] == fitted.inputs_
    assert [column["column"] for column in found["columns"]] == ["size", "town", "year"]
    assert found["record"]["scores"] == RECORD["scores"]
    assert found["bytes"] == folder.stat().st_size


def test_model_of_python_has_no_scores(fitted, tmp_path, capsys):
    fitted.record_ = {}
    fitted.save(tmp_path / "m")
    said = shell(capsys, "info", tmp_path / "m")
    assert said.code == 0, said.error
    assert "price: " not in said.out
    assert [numbers(line) for line in said.out.splitlines() if line.startswith("unfamiliar")] == [[0.5]]


def test_record_is_part_of_the_model(folder, fitted):
    """One file has both, so that no kill can part them."""
    assert load_model(folder)[1]["record"] == RECORD
    model = models.load(folder)
    assert model.record_ == RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "many"},
        {"held_out": None},
        {"held_out": {"how": 3, "rows": 1, "learned_from": True}},
        {"scores": []},
        {"row_hashes": "?"},
        {"row_hashes": 7},
        {"scores": {"price": {"evidential": {"rmse": "good"}}}},
        {"scores": {"price": {"evidential": SCORES["linear"] | {"coverage": {"0.9": "all"}}}}},
    ],
)
def test_forged_record_raises(change, folder, fitted, capsys):
    for record in (RECORD | change, ["no", "dict"]):
        models.save(fitted, folder, record)
        said = shell(capsys, "info", folder)
        assert said.code == 2, said
        assert str(folder) in said.error
    models.save(fitted, folder, {})


def test_model_of_images_raises(tmp_path, capsys):
    recipe = hs.ImageRecipe(width=2, blocks=1)
    networks = (recipe.network(4, 0),)
    FittedImages(Evidential(), networks, recipe).save(tmp_path / "m")
    said = shell(capsys, "info", tmp_path / "m")
    assert (said.code, str(tmp_path / "m") in said.error) == (2, True)


# Kills ---------------------------------------------------------------------------------------------------------------


@pytest.mark.extras
def test_kill_of_fit_leaves_the_old_model_or_the_new_one():
    assert commands.kills_in_fit(2) == (2, [])


@pytest.mark.extras
def test_kill_of_predict_leaves_no_part_of_an_output():
    assert commands.kills_in_predict(2, rows=30_000, endings=(".csv",)) == (2, [])


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (hs.InputError("this\n  is wrong"), 2, "howsure: this is wrong\n"),
        (OSError(errno.ENOSPC, "No space left on device", "p.csv"), 2, "'p.csv'\n"),
        (MemoryError(), 2, "memory"),
        (torch.OutOfMemoryError(), 2, "memory"),
    ],
)
def test_user_errors_are_one_sentence(error, code, sentence, capsys, monkeypatch):
    def fail(**_):
        raise error

    monkeypatch.setattr(application, "app", fail)
    said = shell(capsys)
    assert said.code == code
    assert sentence in said.error
    assert "Traceback" not in said.error
    assert len(said.error.splitlines()) <= 1


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("fit", "--steps", "0"), ["'--steps'"]),
        (("fit", "--method", "magic"), ["'magic'", "'evidential'", "'ensemble'"]),
        (("predict", "model"), ["argument"]),
        (("fit", "a.csv", "--traget", "y"), ["--traget"]),
        (("fits",), ["'fits'"]),
        (("predict", "m", "t.csv", "-o", "p.csv", "--coverage", "much"), ["'--coverage'"]),
    ],
)
def test_mistyped_command_is_one_sentence(arguments, tokens, capsys):
    said = shell(capsys, *arguments)
    assert said.code == 2
    assert said.out == ""
    assert len(said.error.splitlines()) == 1
    assert said.error.startswith("howsure: ")
    assert [token for token in tokens if token not in said.error] == []


def test_missing_command_prints_help(capsys):
    said = shell(capsys)
    assert said.code == 2
    assert "Usage: " in said.out + said.error
    assert "Example: howsure" in said.out + said.error
    assert shell(capsys, "--version") == (0, f"howsure {hs.__version__}\n", "")


def test_error_that_no_one_expects_is_ours(capsys, monkeypatch):
    monkeypatch.setattr(application, "app", lambda **_: {}["no such key"])
    said = shell(capsys)
    assert said.code == 1
    assert "Traceback" in said.error
    assert said.error.splitlines()[-1].startswith("howsure: ")


def test_warnings_of_the_library_are_lines(capsys):
    with console.speaking():
        for _ in range(2):
            warnings.warn("two\n  lines", UserWarning, stacklevel=1)
        warnings.warn("for programmers", DeprecationWarning, stacklevel=1)
        warnings.warn("an overflow", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: two lines\n"


def test_names_cannot_write_to_the_terminal(capsys):
    assert console.table([{"a\x1b[2J": "b\nc"}]) == "a?[2J\nb?c"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_shows_rows_and_their_rate_after_a_while(stream, monkeypatch):
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.05)
    monkeypatch.setattr(console, "SECONDS_BEFORE_PROGRESS", 0.2)
    with console.Progress("predicting", 100) as progress:
        progress.add(20)
        assert written.getvalue() == ""
        for _ in range(200):
            if written.getvalue():
                break
            time.sleep(0.05)
    assert written.getvalue().startswith("predicting: 20 of 100 rows, ")
    assert ("\n" in written.getvalue()) is not written.isatty()
    shown = written.getvalue()
    with console.Progress("predicting", quiet=True) as progress:
        progress.add(1)
    assert progress.summary().startswith("1 row, ")
    assert written.getvalue() == shown


@pytest.mark.parametrize("task", ["export", "evaluate", "report", "predict", "fit"])
def test_every_command_shows_its_progress(task):
    source = Path(hs.__file__).parent / "cli" / f"{task}.py"
    assert "console.Progress(" in source.read_text()


def test_reader_that_leaves_stops_nothing(monkeypatch):
    for unbuffered in (False, True):
        reader, writer = os.pipe()
        os.close(reader)
        with contextlib.ExitStack() as stack:
            monkeypatch.setattr(sys, "stdout", stream := _opened(writer, unbuffered))
            stack.callback(os.close, writer)
            console.prepare_streams()
            assert sys.stdout is not stream
            for _ in range(2):
                sys.stdout.write("λ" * 100_000)
                sys.stdout.flush()
            sys.stdout.detach()  # or it would be closed, with the pipe, when it is forgotten
            stream.detach()


def _opened(handle, unbuffered):
    raw = io.FileIO(handle, "wb", closefd=False)
    return io.TextIOWrapper(raw if unbuffered else io.BufferedWriter(raw), "ascii", write_through=unbuffered)


@pytest.mark.parametrize("closed", ["pipe", "nothing"])
def test_closed_output_pipe(closed):
    """In a process of its own, as ``howsure … | true`` and ``howsure … >&-``: it ends well and says nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "import os, sys; sys.argv = ['howsure', '--version']; from howsure.cli import main; main()"
    before = "" if closed == "pipe" else "import sys; sys.stdout.close(); sys.stdout = None; "
    done = subprocess.run(
        [sys.executable, "-c", before + code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


# as if Ctrl-C were pressed while Python reads this module for the first time
INTERRUPT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["howsure", "info"]
from howsure.cli import main
main()
"""


@pytest.mark.parametrize("name", ["typer", "torch"])
def test_interrupt_while_torch_is_imported_ends_with_130(name):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT.format(name=name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "howsure: interrupted\n")


def verbs(command=None, path=()):
    """Yield all verbs with their options, as (words, names of options)."""
    command = typer.main.get_command(application.app) if command is None else command
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from verbs(each, (*path, name))
    else:
        yield path, {name for parameter in command.params for name in parameter.opts}


VERBS = dict(verbs())
# of each verb: bad input, and what an interrupt may come in
TRIED = {
    ("fit",): (("no.csv", "--target", "x"), "howsure.cli.fit.read_file"),
    ("predict",): (("m", "no.csv", "-o", "p.csv"), "howsure.cli.models.load"),
    ("evaluate",): (("m", "no.csv"), "howsure.cli.models.load"),
    ("report",): (("m", "no.csv", "-o", "r.html"), "howsure.cli.models.load"),
    ("info",): (("m",), "howsure.cli.models.load"),
}


def test_verbs_that_are_tried_are_all():
    assert set(VERBS) - {("export",)} == set(TRIED)  # exports have tests of their own


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_command_has_an_example_and_quiet(verb, capsys):
    said = shell(capsys, *verb, "--help")
    assert said.code == 0
    assert f"Example: howsure {' '.join(verb)}" in said.out
    assert ("--quiet" in VERBS[verb]) is (verb != ("info",))
    assert ("--out" in VERBS[verb]) is (verb not in (("info",), ("evaluate",)))


@pytest.mark.parametrize("verb", TRIED, ids=" ".join)
def test_every_verb_ends_with_2_and_130(verb, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad, interrupted = TRIED[verb]
    said = shell(capsys, *verb, *bad)
    assert said.code == 2, said
    assert (said.out, len(said.error.splitlines())) == ("", 1)
    assert said.error.startswith("howsure: ")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, interrupt)
    assert shell(capsys, *verb, *bad) == (130, "", "")


def test_interrupt_ends_with_130(tmp_path):
    """In a process of its own: a fit that would take long is interrupted, and leaves nothing."""
    table = write(houses(), tmp_path / "t.csv")
    command = [sys.executable, "-m", "howsure.cli", "fit", table, "--target", "price", "-o", tmp_path / "m"]
    process = subprocess.Popen(
        [*map(str, command), "--steps", "1000000", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    while "fitting to" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert error.splitlines()[-1] == "howsure: interrupted"
    assert not (tmp_path / "m").exists()
