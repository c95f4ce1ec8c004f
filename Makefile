# Every target sets itself up: a virtual environment in .venv, and what constraints.txt pins.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow check bench docs page clean
.NOTPARALLEL:

demo: .venv/core
	$(BIN)/latecomer demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" --numprocesses auto --dist worksteal --cov

# What needs other processes: a Ray cluster, a SuperLink with its nodes, runs that are killed.
slow: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

check: .venv/dev
	$(BIN)/ruff format --check -q
	$(BIN)/ruff check -q
	$(BIN)/mypy

docs: .venv/docs
	$(BIN)/python docs/reference.py build/docs
	@echo "The reference: build/docs/index.html"

# What the page of `latecomer serve` runs models with, from the npm registry.
page:
	$(PYTHON) src/latecomer/serve/page/vendor.py

bench: .venv/dev
	$(BIN)/python benchmarks/bench.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build

# Not all that is installed is compiled: what is imported will be, once, unless the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
.venv/core: WHAT := .
.venv/dev: WHAT := .[flower,ray,hub,privacy,knn,export,serve,report,track,tune,dev]
.venv/docs: WHAT := .[docs]
.venv/core .venv/dev .venv/docs: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "latecomer needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '$(WHAT)'
	touch .venv/core $@
