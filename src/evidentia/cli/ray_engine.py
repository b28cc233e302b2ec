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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidentia.data.table_files import read_batches
from evidentia.data.table_writer import writing
from evidentia.errors import InputError
from evidentia.files import scratch_folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict"]

ROWS = 65_536  # of a batch, as in the local engine
SPAN = 1 << 18  # rows of a span, or more where row groups are huge
MOST_TASKS = 20_000  # so that Ray's own work stays small beside the predictions

Function = Callable[["pd.DataFrame"], "pd.DataFrame"]
Answer = dict[str, Any]


def predict(
    jobs: Sequence[tuple[Path, Path]],
    function: Function,
    text: Sequence[str] = (),
    replace: bool = False,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Predict tables with Ray and return the number of rows.

    Uses the cluster that ``RAY_ADDRESS`` or an earlier ``ray.init`` names, and otherwise the cores of this machine.

    Args:
        jobs: pairs of a table and the file of its predictions, which appears whole when all tables are predicted.
        function: a batch of rows → the frame of their predictions; it is pickled and sent to every worker once.
        text: columns that are read as text, as for `read_batches`.
        replace: whether outputs that exist are replaced.
        progress: called with the number of rows that were predicted since the last call.

    Raises:
        InputError: if Ray is missing, a table cannot be read or an output cannot be written.
    """
    for _, output in jobs:
        _check_output(output, replace)
    with contextlib.ExitStack() as stack:  # Ray ends first: no worker writes to a folder that is being removed
        scratch = stack.enter_context(scratch_folder(jobs[0][1]))
        spans = []
        for k, (path, _) in enumerate(jobs):
            (scratch / str(k)).mkdir()
            spans += [(k, str(path.resolve()), str(scratch / str(k)), *ends) for ends in _ends(path)]
        ray = stack.enter_context(_connected())
        workers = max(1, min(len(spans), int(ray.cluster_resources().get("CPU", 1))))
        predicted = _dataset(ray, spans).map_batches(
            _Predictor,
            fn_constructor_args=([ray.put(function)], tuple(text)),
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=1,
            num_cpus=1,
        )
        parts: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for answer in _answers(predicted):
            parts[answer["job"]] += [(first, name) for first, name in answer["parts"]]
            if progress is not None:
                progress(answer["rows"])
        joins = [(sorted(parts[k]), str(output.resolve()), replace) for k, (_, output) in enumerate(jobs)]
        return sum(answer["rows"] for answer in _answers(_dataset(ray, joins).map_batches(_join, batch_size=1)))


def _check_output(output: Path, replace: bool) -> None:
    """Raise now what the writer of an output would raise when all rows are predicted."""

    class _NotYetError(Exception):
        pass

    with contextlib.suppress(_NotYetError), writing(output, replace=replace):
        raise _NotYetError


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    """Yield the module ray, connected to a cluster; one that was not there before is shut down at the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray would report to its makers
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError("--engine ray needs Ray, which is not installed: pip install evidentia[ray]") from error
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


def _ends(path: Path) -> list[tuple[int, int | None]]:
    """Return where the spans of a table begin and end: at multiples of a batch."""
    import pyarrow.parquet

    if not path.is_file():
        raise InputError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    try:
        metadata = pyarrow.parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError):  # another format, or damaged: its reader knows what to say
        return [(0, None)]
    groups = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    # each span reads its first row group from the beginning, which must stay cheap beside its predictions
    size = -(-max(SPAN, max(groups, default=0) // 16) // ROWS) * ROWS
    cuts = [0, *range(size, metadata.num_rows, size)]
    return [*zip(cuts, [*cuts[1:], None], strict=True)]


def _dataset(ray: Any, tasks: Sequence[tuple[Any, ...]]) -> Any:
    """Return tasks as a dataset of Ray, each to be taken by any worker."""
    rows = [{"task": json.dumps(task)} for task in tasks]  # as text: a column has one type
    return ray.data.from_items(rows, override_num_blocks=max(1, min(len(rows), MOST_TASKS)))


def _answers(dataset: Any) -> Iterator[Answer]:
    """Yield what workers answer, in any order; pass on what they warn of, and raise what they could not do."""
    said: set[str] = set()
    for row in dataset.iter_rows():
        answer: Answer = json.loads(row["answer"])
        for message in answer["warnings"]:
            if message not in said:
                said.add(message)
                warnings.warn(message, UserWarning, stacklevel=3)
        if "error" in answer:
            raise InputError(answer["error"])
        yield answer


def _answer(work: Callable[..., Answer], tasks: Any) -> dict[str, list[str]]:
    """Return the answers to tasks as a batch of Ray; what is wrong with files is an answer and no failure."""
    answers = []
    for task in tasks["task"]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                found = work(*json.loads(task))
            except (InputError, OSError) as error:
                found = {"error": str(error)}
        said = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, UserWarning))
        answers.append(json.dumps(found | {"warnings": list(said)}))
    return {"answer": answers}


class _Predictor:
    """Worker that has the model and predicts one span after the other."""

    def __init__(self, function: Sequence[Any], text: Sequence[str]) -> None:
        import ray

        (self.function,), self.text = ray.get(function), text

    def __call__(self, tasks: Any) -> dict[str, list[str]]:
        return _answer(self.predict, tasks)

    def predict(self, job: int, source: str, folder: str, start: int, stop: int | None) -> Answer:
        """Write the predictions of each batch of a span to a file in the folder, unless it is there."""
        ends: Answer = {} if (start, stop) == (0, None) else {"start": start, "stop": stop}  # not for every format
        parts, first = [], start
        for frame in read_batches(Path(source), rows=ROWS, text=self.text, **ends):
            part = Path(folder, f"{first:016d}.feather")
            if not part.exists():
                half = part.with_suffix(f".{secrets.token_hex(4)}")
                self.function(frame).reset_index(drop=True).to_feather(half)
                half.replace(part)
            parts.append((first, str(part)))
            first += len(frame)
        return {"job": job, "parts": parts, "rows": first - start}


def _join(tasks: Any) -> dict[str, list[str]]:
    """Write outputs from their parts, whole or not at all."""

    def join(parts: list[tuple[int, str]], output: str, replace: bool) -> Answer:
        import pandas as pd

        rows = 0
        with writing(Path(output), replace=replace) as write:
            for first, name in parts:
                frame = pd.read_feather(name)
                assert first == rows, f"{output}: row {rows} is missing"  # or rows would be lost in silence
                write(frame)
                rows += len(frame)
        return {"rows": rows}

    return _answer(join, tasks)
