"""All experiments of the paper by name, and the page of whatever run lies in a folder."""

import os
from collections.abc import Mapping
from pathlib import Path

from howsure.errors import InputError
from howsure.files import write_text
from howsure_paper.depth.plan import EXPERIMENT as DEPTH
from howsure_paper.protocol import Experiment, Record, find_runs
from howsure_paper.record import refusing_damage
from howsure_paper.toy.plan import EXPERIMENTS as TOYS
from howsure_paper.uci.plan import EXPERIMENT as UCI

__all__ = ["EXPERIMENTS", "page_text", "write_page"]

EXPERIMENTS: Mapping[str, Experiment] = {experiment.name: experiment for experiment in (*TOYS, UCI, DEPTH)}
MARK = "<!-- written by `howsure-paper page`; edit its template or run the experiment, do not edit this -->"


def write_page(folder: Path, out: Path | None = None) -> list[Path]:
    """Write the page of the runs in a folder, and their tables and figures anew; return the paths, the page first.

    Args:
        folder: of a run, or with the folders of several runs of one experiment.
        out: file of the page; ``FOLDER.md`` beside the folder by default.

    Raises:
        InputError: if the folder holds no run, or the file of the page is someone else's.
    """
    folder = folder.resolve()
    page = folder.with_name(f"{folder.name}.md") if out is None else out
    if page.exists() and "<!-- written by" not in page.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"{page} was not written by this command; move it away, or name another file with --out")
    work = _experiment(folder).work
    written = []
    for path, record in find_runs(folder).items():
        with refusing_damage(path):
            written += work.write_results(record, path)
    write_text(page, page_text(folder, page))
    return [page, *written]


def page_text(folder: Path, page: Path | None = None) -> str:
    """Return the page of the runs in a folder, with links from its file ``page``; beside the folder by default."""
    link = folder.name if page is None else Path(os.path.relpath(folder, page.resolve().parent)).as_posix()
    with refusing_damage(folder):
        title, rest = _experiment(folder).work.page(folder, link).split("\n\n", 1)
        quick = [path.name for path, record in find_runs(folder).items() if _is_quick(record)]
    note = [f"**Quick, no result to quote: {', '.join(quick)}.**"] if quick else []
    return "\n\n".join([MARK, title, *note, rest])


def _is_quick(record: Record) -> bool:
    return bool(record["quick"] if "quick" in record else record["plan"]["quick"])  # depth has it in its plan


def _experiment(folder: Path) -> Experiment:
    """Return the experiment whose runs a folder holds."""
    runs = set()
    for path, record in find_runs(folder).items():
        with refusing_damage(path):
            runs.add(str(record["run"]))
    names = sorted(runs)
    if len(names) > 1:
        raise InputError(f"{folder} holds runs of {', '.join(names)}; name the folder of one experiment")
    if names[0] not in EXPERIMENTS:
        raise InputError(f"{folder} holds a run of {names[0]!r}, which has no page; known are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[names[0]]
