"""Try what an adversary would, and print how often it was tried and how often it failed: ``make faults``.

python -m faults [--small]   (with tests/ on the path)
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable

from faults import commands, forgeries, mixtures, odd_files, processes, tables

Check = Callable[[], tuple[int, list[str]]]


def checks(share: float) -> dict[str, Check]:
    """Every check by name; ``share`` of its full size."""

    def times(count: int) -> int:
        return max(1, round(share * count))

    return {
        "kills in save": lambda: processes.kills_in_save(times(200)),
        "saves and loads of four processes": lambda: processes.writers(3, seconds=20 * share),
        "kills in howsure fit": lambda: commands.kills_in_fit(times(20)),
        "kills in howsure predict": lambda: commands.kills_in_predict(2 * times(10)),
        "interrupts of fit": lambda: processes.interrupts_of_fit(times(20)),
        "forged model files": lambda: forgeries.check(times(100)),
        "odd tables through fit and predict": lambda: tables.check(times(300)),
        "odd files through the shell": lambda: odd_files.check(times(300)),
        "comparisons of 1,000 random mixtures": lambda: mixtures.check(times(1000)),
        "comparisons of 500 weighted mixtures": lambda: mixtures.check(times(500), weighted=True),
    }


def main() -> None:
    """Run all checks; exit 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a twentieth of each, to see that it works")
    share = 0.05 if parser.parse_args().small else 1.0
    warnings.simplefilter("ignore")  # odd tables are told of many things
    failures = 0
    print(f"{'what':<40}{'tried':>8}{'failed':>8}{'seconds':>9}")
    for name, check in checks(share).items():
        started = time.perf_counter()
        tried, failed = check()
        failures += len(failed)
        print(f"{name:<40}{tried:>8}{len(failed):>8}{time.perf_counter() - started:>9.0f}", flush=True)
        for message in failed[:20]:
            print(f"    {message}", flush=True)
    print(f"failed: {failures}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
