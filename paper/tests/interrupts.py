"""Interrupt experiments at random moments, and print how often that was tried and how often it failed.

python interrupts.py [--small]   (``make faults`` runs it)
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from program import command, start

Found = tuple[int, list[str]]


def interrupts_of(name: str, count: int = 20, seed: int = 0, longest: float = 6.0) -> Found:
    """Interrupt an experiment at random moments: it must exit with 130, and its record hold finished results only.

    The same command is then run to its end, and its numbers must be those of an undisturbed run.

    Returns:
        The number of interrupts, and a sentence for each failure.
    """
    choose, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        quiet, disturbed = Path(scratch) / "quiet", Path(scratch) / "disturbed"
        if (said := start([*_experiment(name), "--out", str(quiet)]).communicate()) and not _numbers(quiet):
            return 1, [f"{name} did not run: {said[1][-500:]}"]
        tried = 0
        while tried < count:
            process = start([*_experiment(name), "--out", str(disturbed)])
            time.sleep(3 + choose.random() * longest)  # past the imports
            if process.poll() is not None:  # nothing was left to do: begin anew
                process.communicate()
                if _numbers(disturbed) != _numbers(quiet):
                    failed.append(f"{name}: after {tried} interrupts the numbers differ")
                for path in sorted(disturbed.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()
                continue
            process.send_signal(signal.SIGINT)
            error = process.communicate(timeout=120)[1]
            tried += 1
            if process.returncode not in (130, -signal.SIGINT) or (
                process.returncode == 130 and "interrupted" not in error
            ):
                failed.append(f"{name}, interrupt {tried}: exit {process.returncode}: {error[-300:]}")
            failed += [f"{name}, interrupt {tried}: {wrong}" for wrong in _unfinished(disturbed, quiet)]
        last = start([*_experiment(name), "--out", str(disturbed)])
        last.communicate()
        if last.returncode or _numbers(disturbed) != _numbers(quiet):
            failed.append(f"{name}: the numbers after {tried} interrupts are not those of an undisturbed run")
    return count, failed


def _experiment(name: str) -> list[str]:
    if name == "uci":
        return command("uci", "--quick", "--sets", "diabetes", "--members", "2", "--device", "cpu")
    return command("depth", "--quick", "--groups", "evidential;gaussian", "--steps", "60", "--device", "cpu")


def _numbers(folder: Path) -> dict[str, object]:
    """Return the scores of a record, without times."""
    path = folder / "record.json"
    if not path.exists():
        return {}
    results = json.loads(path.read_text(encoding="utf-8")).get("results", {})
    if not results:
        return {}
    if any("splits" in r for methods in results.values() if isinstance(methods, dict) for r in methods.values()):
        return {f"{name} {m}": r["splits"] for name, methods in results.items() for m, r in methods.items()}
    return {name: [(t["rmse"], t["nll"]) for t in trials] for name, trials in results.items()}


def _unfinished(disturbed: Path, quiet: Path) -> list[str]:
    """Return which results in the record of an interrupted run are not those of a finished one."""
    whole = _numbers(quiet)
    return [
        f"{key} is in the record, half-trained" for key, value in _numbers(disturbed).items() if value != whole[key]
    ]


def main() -> None:
    """Interrupt both experiments; exit 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one interrupt of each experiment")
    count, failures = 1 if parser.parse_args().small else 20, 0
    for name in ("uci", "depth"):
        started = time.perf_counter()
        tried, failed = interrupts_of(name, count)
        failures += len(failed)
        seconds = time.perf_counter() - started
        line = f"{'interrupts of howsure-paper ' + name:<40}{tried:>8}{len(failed):>8}{seconds:>9.0f}"
        sys.stdout.write("\n    ".join([line, *failed[:20]]) + "\n")
        sys.stdout.flush()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
