"""Predict tables on many cores or machines with Ray Data: the same rows, in the same order, as on one.

A file is cut into spans of whole batches. Workers, each with its own copy of the model, write the predictions of each
batch to a file of its own in a hidden folder beside the output; when all are there, they are joined, in order, by the
writer that the local engine uses. The batches are those of the local engine, because the last digits of a prediction
depend on which rows are computed together. If a worker is killed, Ray starts another, which skips the batches that are
there. Every machine must see the files under the same paths.
"""

import contextlib
import json
import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure.cli.rows import naming_rows
from howsure.errors import HowsureError, InputError, UnreadableCellsWarning, install_hint
from howsure.files import scratch_folder
from howsure.io import check_output, find_spans, writing

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict"]

SPAN = 1 << 18  # rows of a span, or more where row groups are huge
MOST_TASKS = 20_000  # so that Ray's own work stays small beside the predictions


def predict(
    jobs: Sequence[tuple[Path, Path]],
    read: Callable[..., Iterator["pd.DataFrame"]],
    function: Callable[["pd.DataFrame"], "pd.DataFrame"],
    replace: bool = False,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Predict tables with Ray and return the number of rows.

    Uses the cluster that ``RAY_ADDRESS`` or an earlier ``ray.init`` names, and otherwise the cores of this machine.

    Args:
        jobs: pairs of a table and the file of its predictions, which appears whole when all tables are predicted.
        read: reads a table in batches, as `read_batches` does; it is pickled with the function.
        function: a batch of rows → the frame of their predictions; it is pickled and sent to every worker once.
        replace: whether outputs that exist are replaced.
        progress: called with the number of rows that were predicted since the last call.

    Raises:
        InputError: if Ray is missing, a table cannot be read or an output cannot be written.
    """
    with contextlib.ExitStack() as stack:  # Ray ends first: no worker writes to a folder that is being removed
        for _, output in jobs:
            check_output(output, replace)
        scratch = stack.enter_context(scratch_folder(jobs[0][1]))
        folders = [scratch / str(k) for k in range(len(jobs))]
        spans = []
        for folder, (path, _) in zip(folders, jobs, strict=True):
            folder.mkdir()
            spans += [(str(path.resolve()), str(folder), *ends) for ends in find_spans(path, SPAN)]
        ray = stack.enter_context(_connected())
        workers = max(1, min(len(spans), int(ray.cluster_resources().get("CPU", 1))))
        predicted = _dataset(ray, spans).map_batches(
            _Predictor,
            fn_constructor_args=([ray.put((read, function))],),
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=1,
            num_cpus=1,
        )
        rows = 0
        for count in _counts(predicted):
            rows += count
            if progress is not None:
                progress(count)
        joins = [
            (str(folder), str(output.resolve()), replace) for folder, (_, output) in zip(folders, jobs, strict=True)
        ]
        joined = sum(_counts(_dataset(ray, joins).map_batches(_join, batch_size=1)))
        assert joined == rows, f"{rows - joined} rows are missing"  # or they would be lost in silence
        return joined


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Yield the module ray, connected to a cluster; one that was not there before is shut down at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray would report to its makers
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError(f"--engine ray needs Ray, which is not installed: {install_hint('ray')}") from error
    context = ray.data.DataContext.get_current()
    shown, own = context.enable_progress_bars, not ray.is_initialized()
    if own:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context.enable_progress_bars = False
    try:
        yield ray
    finally:
        context.enable_progress_bars = shown
        if own:
            ray.shutdown()


def _dataset(ray: Any, tasks: Sequence[tuple[Any, ...]]) -> Any:
    """Return tasks as a dataset of Ray, each to be taken by any worker."""
    rows = [{"task": json.dumps(task)} for task in tasks]  # as text: a column has one type
    return ray.data.from_items(rows, override_num_blocks=max(1, min(len(rows), MOST_TASKS)))


def _counts(dataset: Any) -> Iterator[int]:
    """Yield the numbers of rows that workers have done; pass on what they warn of, and raise what they could not do."""
    said: set[str] = set()
    for row in dataset.iter_rows():
        rows, wrong, messages = json.loads(row["answer"])
        for unreadable, arguments in messages:
            warning = UnreadableCellsWarning(*arguments) if unreadable else UserWarning(*arguments)
            if unreadable or str(warning) not in said:
                said.add(str(warning))
                warnings.warn(warning, stacklevel=3)
        if wrong:
            raise InputError(**wrong)
        yield rows


def _answer(work: Callable[..., int], tasks: Any) -> dict[str, list[str]]:
    """Return the answers to tasks as a batch of Ray; what is wrong with files is an answer and no failure."""
    answers = []
    for task in tasks["task"]:
        rows: int = 0
        wrong: dict[str, Any] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                rows = work(*json.loads(task))
            except HowsureError as error:
                wrong = {"message": error.message, "column": error.column, "row": error.row, "hint": error.hint}
            except OSError as error:
                wrong = {"message": str(error) or type(error).__name__}
        said = [each.message for each in caught if isinstance(each.message, UserWarning)]
        messages = [(isinstance(each, UnreadableCellsWarning), each.args) for each in said]
        answers.append(json.dumps((rows, wrong, messages)))
    return {"answer": answers}


class _Predictor:
    """Worker that has the model and predicts one span after the other."""

    def __init__(self, functions: Sequence[Any]) -> None:
        import ray

        ((self.read, self.function),) = ray.get(functions)

    def __call__(self, tasks: Any) -> dict[str, list[str]]:
        return _answer(self.predict, tasks)

    def predict(self, source: str, folder: str, start: int, stop: int | None) -> int:
        """Write the predictions of each batch of a span to a file in the folder, unless it is there."""
        first = start
        for frame in self.read(Path(source), span=(start, stop)):
            part = Path(folder, f"{first:016d}.feather")
            if not part.exists():
                half = part.with_suffix(f".{secrets.token_hex(4)}")
                with naming_rows(source, range(first, first + len(frame))):
                    self.function(frame).reset_index(drop=True).to_feather(half)
                half.replace(part)
            first += len(frame)
        return first - start


def _join(tasks: Any) -> dict[str, list[str]]:
    """Write outputs from their parts, whole or not at all."""

    def join(folder: str, output: str, replace: bool) -> int:
        import pandas as pd

        rows = 0
        with writing(Path(output), replace=replace) as write:
            for part in sorted(Path(folder).glob("*.feather")):
                frame = pd.read_feather(part)
                assert int(part.stem) == rows, f"{output}: row {rows} is missing"  # or rows would be lost in silence
                write(frame)
                rows += len(frame)
        return rows

    return _answer(join, tasks)
