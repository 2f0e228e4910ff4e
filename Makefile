# Everything a newcomer or a machine needs: `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .venv-peers
CONSTRAINTS ?= constraints.txt
# Without `packages`, tests with other packages are skipped.
EXTRAS ?= dev,packages
# Dozens of programs that tests start load what the first of them compiled.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test coverage quick long lint format type bench thresholds peers docs site wheel clean

help:  ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/' | expand -t 16

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit("Veil needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[$(EXTRAS)]"
	@touch $@

demo: $(STAMP)  ## train on the bundled data; ends with a table and the path of the report
	$(BIN)/veil demo

test: $(STAMP)  ## every test that fits a laptop (slow and browser ones included)
	PYTHON=$(BIN)/python sh tests/debian.sh chromium chromium playwright "browser tests"
	PYTHON=$(BIN)/python sh tests/debian.sh postgresql initdb psycopg "PostgreSQL tests"
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(COVERAGE)

coverage: COVERAGE := --cov --cov-report=term
coverage: test  ## the same with coverage, which takes half as long again

quick: $(STAMP)  ## the tests to run after every change: the fastest that fit into a minute
	$(BIN)/python -m pytest -m "not long and not slow and not browser and not statistical" --within 60 --exitfirst --quiet \
		--numprocesses 2 --dist worksteal

long: $(STAMP)  ## the same promises at sizes that CI has no time for
	$(BIN)/python -m pytest -m long --numprocesses 2

lint: $(STAMP)  ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP)  ## rewrite files as ruff likes them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

type: $(STAMP)  ## mypy --strict on src
	$(BIN)/mypy

bench: $(STAMP)  ## speed and memory beside the peers, in one process
	$(BIN)/python -m benchmarks all

thresholds: $(STAMP)  ## the benchmarks that have a threshold; fails where one is passed
	$(BIN)/python -m benchmarks thresholds

$(PEERS)/.installed: constraints-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints-peers.txt \
		diffprivlib interpret-core jax-privacy lightgbm opacus pandas pyarrow scikit-learn torch
	@touch $@

peers: $(PEERS)/.installed  ## the peers' own environment, for `python -m benchmarks tables`

docs: $(STAMP)  ## rewrite the pages that are made from code
	$(BIN)/python scripts/build_docs.py

site: $(STAMP)  ## the documentation as a folder of pages: build/site/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/site
	@echo "open build/site/index.html"

wheel: $(STAMP)  ## wheel and source archive in dist/, tested as they will be installed
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python -m pytest -q tests/packaging tests/docs/test_changelog.py

clean:  ## forget the environment and caches
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
