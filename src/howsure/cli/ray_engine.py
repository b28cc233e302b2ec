"""Predict tables on many cores or machines with Ray Data: the same rows, in the same order, as on one.

A file is cut into spans of whole batches. Workers, each with its own copy of the model, read and predict the spans, and
this process writes the predictions in order. The batches are the local engine's, because the last digits of a
prediction depend on which rows are computed together. If a worker is killed, Ray repeats its span. Every machine must
see the files under the same paths.
"""

import contextlib
import itertools
import logging
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure.cli.rows import naming_rows
from howsure.errors import HowsureError, InputError, install_hint
from howsure.io import BATCH_ROWS, check_output, find_spans, writing

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict"]

SPAN = BATCH_ROWS  # rows of a span, or more where row groups are huge


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
        jobs: pairs of a table and the file of its predictions. A file appears when it is complete.
        read: reads a table in batches, as `read_batches` does. Pickled with the function.
        function: a batch of rows → the frame of their predictions. Pickled and sent to every worker once.
        replace: whether outputs that exist are replaced.
        progress: called with the number of rows that were predicted since the last call.

    Raises:
        InputError: if Ray is missing, a table cannot be read or an output cannot be written.
    """
    for _, output in jobs:
        check_output(output, replace)
    spans = [
        {"job": k, "source": str(path.resolve()), "start": start, "stop": -1 if stop is None else stop}
        for k, (path, _) in enumerate(jobs)
        for start, stop in find_spans(path, SPAN)
    ]
    total = 0
    with _connected() as ray:
        workers = max(1, min(len(spans), int(ray.cluster_resources().get("CPU", 1))))
        found = ray.data.from_items(spans, override_num_blocks=len(spans)).map_batches(
            _Predictor,
            fn_constructor_args=([ray.put((read, function))],),
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=1,
            num_cpus=1,
        )
        for job, own in itertools.groupby(_frames(found), key=lambda each: each[0]):
            with writing(jobs[job][1], replace=replace) as write:
                for _, frame in own:
                    write(frame)
                    total += len(frame)
                    if progress is not None:
                        progress(len(frame))
    return total


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
    before = context.enable_progress_bars, context.execution_options.preserve_order
    own = not ray.is_initialized()
    if own:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context.enable_progress_bars, context.execution_options.preserve_order = False, True
    try:
        yield ray
    finally:
        context.enable_progress_bars, context.execution_options.preserve_order = before
        if own:
            ray.shutdown()


def _frames(found: Any) -> Iterator[tuple[int, "pd.DataFrame"]]:
    """Yield the job and the predictions of each batch; pass on the warnings of workers, and raise their errors."""
    said: set[str] = set()
    for row in found.iter_rows():
        frame, error, messages = pickle.loads(row["answer"])  # of our own workers
        for message in messages:
            if str(message) not in said or type(message) is not UserWarning:
                said.add(str(message))
                warnings.warn(message, stacklevel=3)
        if error is not None:
            raise error
        yield row["job"], frame


class _Predictor:
    """Worker that holds the model and predicts one span after the other."""

    def __init__(self, functions: Sequence[Any]) -> None:
        import ray

        ((self.read, self.function),) = ray.get(functions)

    def __call__(self, span: Any) -> Iterator[dict[str, Any]]:
        """Yield the predictions of each batch of a span. An error of the input is yielded and not raised."""
        import numpy as np

        job, start, stop = (int(span[name][0]) for name in ("job", "start", "stop"))
        source = str(span["source"][0])
        batches = self.read(Path(source), span=(start, None if stop < 0 else stop))
        first, frame, error = start, None, None
        while error is None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    batch = next(batches, None)
                    if batch is None:
                        return
                    with naming_rows(source, range(first, first + len(batch))):
                        frame = self.function(batch).reset_index(drop=True)
                    first += len(batch)
                except (HowsureError, OSError) as problem:
                    error = problem if isinstance(problem, HowsureError) else InputError(str(problem))
            messages = [each.message for each in caught if isinstance(each.message, UserWarning)]
            answer = pickle.dumps((frame, error, messages))
            yield {"job": np.array([job]), "answer": np.array([answer], dtype=object)}
