# make demo and make test need nothing but Python 3.11 or later: they set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo docs docs-serve test-docs test test-paper numbers reproduce golden budget bounds test-extras test-others browser left-out lint format types imports pytest proofs faults bench figures clean
.DEFAULT_GOAL := test

.venv/installed: pyproject.toml paper/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e paper
	@touch $@

DEMO := out/demo
START ?= 2e7fecd
ALONE := tests/test_peers.py tests/test_ray.py tests/test_report_browser.py tests/test_site.py  # each starts processes on every core

# skpro names an upper bound for pandas that is below the tested version, and works with that version
define INSTALL_OTHERS
$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,recipes]"
$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps skpro scikit-base
endef

demo: .venv/installed  ## from a CSV to a report, and the figure of y = x³ + noise
	$(BIN)/python examples/diabetes_files.py --out $(DEMO)
	$(BIN)/howsure fit $(DEMO)/train.csv --target progression --drop patient --test $(DEMO)/test.csv --members 6 -o $(DEMO)/model.safetensors --force
	$(BIN)/howsure evaluate $(DEMO)/model.safetensors $(DEMO)/test.csv
	$(BIN)/howsure predict $(DEMO)/model.safetensors $(DEMO)/test.csv --keep patient -o $(DEMO)/predictions.csv --force
	$(BIN)/howsure report $(DEMO)/model.safetensors $(DEMO)/test.csv -o $(DEMO)/report.html --force
	OMP_NUM_THREADS=1 $(BIN)/python examples/cubic.py --iterations 2000 --members 4 --out $(DEMO)  # half of what README shows, to save time
	@echo
	@echo "model        $(DEMO)/model.safetensors"
	@echo "predictions  $(DEMO)/predictions.csv"
	@echo "report       $(DEMO)/report.html    open it in a browser"
	@echo "figure       $(DEMO)/cubic.png"

test: lint types imports budget pytest left-out  ## everything that must hold before a commit

left-out: pytest
	@echo
	@echo "make test has passed. It left out:"
	@echo "  make docs, make test-docs   the site, and the site in Chromium"
	@echo "  make test-paper   the reproduction of the paper"
	@echo "  make test-extras  recipes with Lightning, Hugging Face, ONNX and other packages, several processes, Ray, Chromium, peers"
	@echo "  make test-others  the checks of torch, scikit-learn, skpro, torchmetrics, scoringrules and ONNX"
	@echo "  make proofs       the long numerical proofs"
	@echo "  make faults       kills, interrupts, forgeries and odd tables by the hundred"
	@echo "  and what pytest lists as skipped above: CUDA, where there is none, and data that is not here"

# the checks of other projects run on our classes: torch, scikit-learn, skpro, torchmetrics, scoringrules, BoTorch, ONNX
test-others: .venv/installed  ## other people's tests (at most five minutes)
	$(INSTALL_OTHERS)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal --no-skips -m extras tests/test_others.py tests/test_contrib.py src/howsure/contrib
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 0 --no-skips -m extras docs/recipes/skpro.md docs/recipes/botorch.md

# of the tests, those marked extras, and the pages of docs whose first line says test-extras (see conftest.py)
test-extras: docs browser  ## what needs Ray, a browser, other packages, processes or time; installs all, skips nothing
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers,ray,browser,recipes,docs]" -e paper
	$(INSTALL_OTHERS)
	HOWSURE_EXTRAS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -q --no-skips -m "not slow" $(ALONE)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist loadfile --no-skips -m "extras and not slow" \
		$(addprefix --ignore=,$(ALONE)) tests docs paper/tests paper/src src/howsure/metrics src/howsure/contrib

browser:  ## Chromium and its driver, from Debian's packages if they are missing
	@if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then root=; elif sudo -n true 2> /dev/null; then root="sudo -n"; else root=none; fi; \
	if [ "$$root" = none ] || ! command -v apt-get > /dev/null; then \
		echo "make test-extras needs Chromium and its driver: install the packages chromium and chromium-driver, as root"; exit 1; \
	fi; \
	echo "installing chromium and chromium-driver"; \
	$$root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$root apt-get install -y -qq --no-install-recommends chromium chromium-driver > /dev/null

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,browser]"
	@touch $@

docs: .venv/docs  ## the site in out/site: any warning or dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open out/site/index.html, or run make docs-serve"

docs-serve: .venv/docs  ## the site on this machine, built again when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

test-docs: docs browser  ## the built site in Chromium, on a desktop and on a phone
	$(BIN)/pytest -q -n 0 --no-skips -m extras tests/test_site.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/english.py

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/installed
	$(BIN)/mypy

imports: .venv/installed
	$(BIN)/lint-imports

budget: .venv/installed  ## code lines of each package against their ceilings
	$(BIN)/python tools/budget.py --check

bounds: .venv/installed  ## 300 random tables with the defaults: no interval beyond what the targets explain (about an hour)
	$(BIN)/python benchmarks/bench_bounds.py

pytest: .venv/installed  ## one process per core, each with one thread: torch's threads wait by spinning
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests src
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile README.md docs  # the blocks of a page share their names

test-paper: .venv/installed  ## the reproduction of the paper
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal paper/tests paper/src
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile paper/README.md paper/docs

numbers: .venv/installed  ## write the numbers of the records into the generated blocks of the documentation
	$(BIN)/howsure-paper quote

reproduce: .venv/installed  ## every experiment of the paper in its quick form (about ten minutes of compute)
	$(BIN)/howsure-paper all --quick --out out/paper/quick

golden: .venv/installed  ## compare predictions and shell output with those of the commit START
	$(BIN)/python tools/golden.py check --against $(START)

proofs: .venv/installed  ## the long numerical proofs (about 5 minutes)
	$(BIN)/pytest -m slow

faults: .venv/installed  ## kills, interrupts, forgeries, odd tables and mixtures by the hundred (about 20 minutes)
	cd tests && ../$(BIN)/python -m faults
	$(BIN)/python paper/tests/interrupts.py

bench: .venv/installed  ## each prints its ratio last; benchmarks/README.md has them all, and what they compare
	for name in intervals loss population predict tables uci; do $(BIN)/python benchmarks/bench_$$name.py || exit 1; done
	$(BIN)/python benchmarks/bench_rows.py --rows 1000000

figures: .venv/installed  ## the figures of README and docs
	$(BIN)/python examples/cubic.py --out docs/figures
	$(BIN)/python examples/epistemic.py --out docs/figures
	$(BIN)/python examples/trained_network.py --out docs/figures
	$(BIN)/python examples/diabetes.py --out docs/figures
	$(BIN)/howsure-paper distribution --out docs/figures/distribution

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache out
