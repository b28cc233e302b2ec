# make demo and make test need nothing but Python 3.11 or later: they set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-extras lint format types imports pytest proofs faults bench figures clean
.DEFAULT_GOAL := test

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: .venv/installed  ## train an evidential network on y = x³ + noise and draw what it knows
	$(BIN)/python examples/cubic.py

test: lint types imports pytest  ## everything that must hold before a commit

test-extras: .venv/installed  ## what needs packages that are not installed otherwise: the peers of benchmarks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers]"
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/test_peers.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/installed
	$(BIN)/mypy

imports: .venv/installed
	$(BIN)/lint-imports

pytest: .venv/installed  ## one process per core, each with one thread: torch's threads wait by spinning
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests src
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile README.md docs  # the blocks of a page share their names

proofs: .venv/installed  ## the long numerical proofs (about 5 minutes)
	$(BIN)/pytest -m slow

faults: .venv/installed  ## kills, interrupts, forgeries, odd tables and mixtures by the hundred (about 20 minutes)
	cd tests && ../$(BIN)/python -m faults

bench: .venv/installed  ## each prints its ratio last; benchmarks/README.md has them all, and what they compare
	for name in intervals loss population predict tables uci; do $(BIN)/python benchmarks/bench_$$name.py || exit 1; done

figures: .venv/installed  ## the figures of README and docs
	$(BIN)/python examples/cubic.py --out docs/figures
	$(BIN)/python examples/epistemic.py --out docs/figures
	$(BIN)/python examples/diabetes.py --out docs/figures
	$(BIN)/evidentia reproduce distribution --out docs/figures/distribution

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache out
