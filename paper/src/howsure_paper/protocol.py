"""What all experiments of the paper share: a plan, a quick plan, a run that continues where it was, and a page.

An experiment is a value, :class:`Experiment`, of which the shell makes a sub-command, and a module with the work
itself, :class:`Work`, which is imported when it is first needed. Plans are frozen dataclasses; their fields made by
:func:`option` become options of the sub-command. This module and those of the plans import nothing large, so that
``--help`` is quick. Pages are templates (:mod:`howsure_paper.pages`).

A run claims its folder, writes its plan to the record, and works unit by unit (a method, a penalty, a group of
networks). A unit's result is in the record before the next unit begins, and what the record has is not run again. A
unit that was cut goes on from its checkpoint in ``unfinished/``.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from howsure.errors import InputError
from howsure.training import Settings
from howsure_paper.record import (
    FILE,
    environment,
    find_record,
    read_record,
    refusing_damage,
    run_folder,
    write_record,
)

__all__ = [
    "Context",
    "Experiment",
    "Option",
    "Record",
    "Work",
    "file_name",
    "find_runs",
    "new_record",
    "open_run",
    "option",
    "same_plan",
    "write_from_record",
]

Record = dict[str, Any]
UNFINISHED = "unfinished"  # folder of checkpoints
EMPTY = "no results yet"  # marks the record of a run that has its plan only
LARGEST_SEED = 2**32 - 1  # that NumPy and torch both take


# Plans ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """How a field of a plan appears on the command line."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    separator: str = ","  # between the items of a tuple


def option(default: Any, help: str, **settings: Any) -> Any:  # noqa: A002
    """Return a field of a plan that is also an option of the sub-command; ``settings`` are those of :class:`Option`."""
    return field(default=default, metadata={"option": Option(help, **settings)})


@dataclass(frozen=True)
class Context:
    """Where a run writes and reads, and what it runs on: all that does not change its results."""

    out: Path
    device: str = "auto"
    data: Path | None = None
    progress: bool = True

    def checkpoint(self, unit: str) -> Path:
        """Return the file that a unit's training is continued from."""
        return self.out / UNFINISHED / f"{file_name(unit)}.ckpt"


# Experiments ----------------------------------------------------------------------------------------------------------


class Work(Protocol):
    """What the module of an experiment has."""

    def run(self, plan: Any, context: Context) -> list[Path]:
        """Run what the record in ``context.out`` does not have yet, and return the paths of all that was written."""

    def write_results(self, record: Record, folder: Path) -> list[Path]:
        """Write the tables of a record, and those figures whose data lie in the folder; return their paths."""

    def page(self, folder: Path, link: str) -> str:
        """Return the page of the record in a folder, or of those in its sub-folders, as Markdown.

        ``link`` is the path from the page to the folder.
        """


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper, as the shell sees it."""

    name: str  # of the sub-command, and ``record["run"]``
    summary: str
    example: str
    plan: type  # a frozen dataclass whose defaults are the paper's settings, with a field ``quick``
    module: str  # where :class:`Work` is
    # plan → a smaller one, whose ``quick`` is True; None if the experiment takes seconds, and no device, as it is
    quick: Callable[[Any], Any] | None = None
    data_help: str | None = None  # of --data; None if the experiment needs no data
    folder: Callable[[Any], str] | None = None  # plan → name of its folder, if not that of the experiment
    variants: Callable[[bool], Sequence[Any]] | None = None  # quick? → the plans of ``howsure-paper all``, if several

    @property
    def work(self) -> Work:
        """The module of the experiment, imported now if it was not yet."""
        return cast(Work, import_module(self.module))

    def folder_of(self, plan: Any) -> str:
        """Return the name of the folder that a run goes to by default."""
        return self.name if self.folder is None else self.folder(plan)

    def plans(self, quick: bool) -> list[Any]:
        """Return the plans that ``howsure-paper all`` runs."""
        chosen = [self.plan()] if self.variants is None else list(self.variants(quick))
        return [self.quick(plan) for plan in chosen] if quick and self.quick is not None else chosen


# Runs -----------------------------------------------------------------------------------------------------------------


def new_record(name: str, plan: Any, device: str) -> Record:
    """Return a record that has no results yet: what is run, by which plan, with which versions, on which device."""
    from howsure.training import resolve_device

    settings = asdict(plan)
    quick = settings.pop("quick")
    return {
        "run": name,
        "plan": settings,
        "quick": quick,
        "environment": environment(resolve_device(device)),
        "results": {},
    }


@contextlib.contextmanager
def open_run(
    folder: Path,
    record: Record,
    *,
    same: Sequence[str] = ("plan",),
    free: Sequence[str] = (),
    kept: Sequence[str] = ("results",),
    check: Callable[[Record], object] | None = None,
) -> Iterator[Record]:
    """Claim a folder and yield the record to add results to: a new one, or that of an earlier run to continue.

    A unit that is in the record removes its own checkpoint; after the last one their folder goes, unless other units
    were cut or someone keeps other files in it.

    Args:
        folder: of the run; nobody else can claim it until the block ends.
        record: a new record, as :func:`new_record` makes it.
        same: entries of the record in which the two runs must agree. Settings of the earlier record that this version
            no longer has are not compared.
        free: settings in which they may differ.
        kept: entries that are taken over from the earlier record.
        check: reads the continued record as the tables do, and raises if something is missing in it.

    Raises:
        InputError: if the folder is not free for this run, or holds one with another plan or of an earlier version, or
            a damaged record.
    """
    with run_folder(folder, record["run"]) as before:
        if before is None or (EMPTY in before and [path.name for path in folder.iterdir()] == [FILE]):
            # a run that was cut before its first checkpoint leaves nothing to continue, and may be replaced
            write_record(folder, {key: value for key, value in record.items() if key not in kept} | {EMPTY: True})
        else:
            _refuse_earlier_version(folder, before)
            with refusing_damage(folder):
                for key in same:
                    same_plan(folder, before[key], record[key], free)
                if EMPTY not in before:
                    record = record | {key: before[key] for key in kept}
                    if check is not None:
                        check(record)
        yield record
        with contextlib.suppress(OSError):
            (folder / UNFINISHED).rmdir()


_SETTINGS = asdict(Settings())


def same_plan(folder: Path, before: Any, now: Any, free: Sequence[str] = (), path: str = "") -> None:
    """Raise an InputError that names the first setting in which a run differs from the earlier one in its folder."""
    if isinstance(now, Mapping):
        for key in (key for key in now if key not in free):
            # a run of a version that did not know a setting was trained with what is its default now
            found = before[key] if key in before else _SETTINGS[key]
            same_plan(folder, found, now[key], free, f"{path}.{key}" if path else str(key))
    elif before != json.loads(json.dumps(now)):  # as it comes back from a file: lists for tuples
        raise InputError(
            f"{folder} holds a run with {path} = {before}, not {now}; choose another folder with --out, or delete that "
            "one"
        )


def _refuse_earlier_version(folder: Path, record: Record) -> None:
    if not {"plan", "results", "begun"} & record.keys():
        raise InputError(
            f"{folder} holds a record of {record.get('run')!r} without a plan, as an earlier version wrote it; choose "
            "another folder to run the experiment anew, or delete that one"
        )


def write_from_record(folder: Path, write_results: Callable[[Record, Path], list[Path]]) -> list[Path]:
    """Write tables and figures from the record in a folder, and return their paths after its own."""
    with refusing_damage(folder):
        return [folder / FILE, *write_results(read_record(folder), folder)]


def find_runs(folder: Path) -> dict[Path, Record]:
    """Return the records of a folder, or of its sub-folders, that have results, by the folder that each lies in.

    Raises:
        InputError: if there is none, or one is damaged or of an earlier version.
    """
    own = find_record(folder)
    records = {folder: own} if own else {path: find_record(path) for path in sorted(folder.glob("*")) if path.is_dir()}
    runs = {path: record for path, record in records.items() if record and record.get("results")}
    if not runs:
        if own:
            _refuse_earlier_version(folder, own)
        raise InputError(f"{folder} holds no record of a finished run; `howsure-paper NAME --out FOLDER` makes one")
    return runs


# Names ----------------------------------------------------------------------------------------------------------------


def file_name(name: str) -> str:
    """Return the name of a method or model as that of a file: letters that every file system knows.

    >>> file_name("evidential, paper's head")
    'evidential_paper_s_head'
    """
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
