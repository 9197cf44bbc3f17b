# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check bench soak examples lint types imports clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[report,torch]" --group dev
	touch $@

demo: $(INSTALLED)  ## look into a shipped portfolio: what its models cost, and what can be merged with what
	$(BIN)/dpmerge inspect examples/mnist

test: $(INSTALLED)  ## all tests, doctests included
	$(BIN)/python -m pytest

check: lint types imports  ## ruff, mypy --strict, import directions

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/python -m pytest tests/test_architecture.py

bench: $(INSTALLED)  ## speed against the peers, measured side by side
	$(BIN)/python -m benchmarks

soak: $(INSTALLED)  ## a million broken manifests, headers and listings
	$(BIN)/python -m fuzz

examples: $(INSTALLED)  ## train the example portfolios again, into .examples
	$(BIN)/python examples/mnist/train.py --data .examples/data --out .examples/mnist
	$(BIN)/python examples/probe/train.py --data .examples/data --out .examples/probe

clean:  ## remove everything that was set up
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
