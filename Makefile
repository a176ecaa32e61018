# Everything runs in .venv, made from the locked requirements. PYTHON picks the interpreter it is made with.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.set-up
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup test test-all lint types imports format demo bench lock
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 10

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    f"Serried needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --require-hashes -r requirements.txt -r requirements-dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(STAMP) ## Make .venv from the locked requirements and install the package into it

lint: setup ## Check style and likely mistakes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup ## Check types
	$(PY) -m mypy

imports: setup ## Check that imports point downward only
	$(VENV)/bin/lint-imports

# The control plane's programs are built before pytest starts, so that its progress is seen and no test waits for it.
# Scenarios mostly wait, so two processes, with a control plane each, take little more than half the time of one.
PYTEST_ARGS ?= -n 2 --dist worksteal
test: lint types imports ## All checks and all tests, on the embedded cluster and on a real control plane
	assets="$$($(PY) -m tools.controlplane path)" && KUBEBUILDER_ASSETS="$$assets" $(PY) -m pytest $(PYTEST_ARGS)

test-all: ## The same, with the whole matrix of crashes and interferences on the real control plane
	$(MAKE) test PYTEST_ARGS='$(PYTEST_ARGS) -m ""'

format: setup ## Rewrite the sources in the project's format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

demo: setup ## A cluster in memory, a stream of training jobs and a live map of them
	$(VENV)/bin/serried demo $(DEMO_ARGS)

bench: setup ## Run the benchmarks, one after the other
	for name in place quality admission stream look end_to_end crd_weight; do $(PY) -m "bench.$$name"; done
	$(PY) -m bench.end_to_end --driver bench/workloads.py -- 1 100

# --no-emit-*: the locks name packages, versions and hashes, and no place to get them from.
LOCK := $(PY) -m piptools compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-header \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --no-annotate

lock: setup ## Pin the newest versions the requirements allow (LOCK_ARGS=--upgrade for all of them)
	$(LOCK) $(LOCK_ARGS) --output-file requirements.txt requirements.in
	$(LOCK) $(LOCK_ARGS) --output-file requirements-dev.txt requirements-dev.in
