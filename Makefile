# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check bench soak reproduce audit examples chromium lint types imports clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[report,torch,postgres]" --group dev
	touch $@

demo: $(INSTALLED)  ## the whole story on a shipped portfolio: inspect, plan, merge, verify, audit, ledger, report
	$(BIN)/python examples/demo.py

# A file of tests stays on one core: its fixtures are made once.
test: $(INSTALLED) chromium  ## all tests, doctests included, on both cores
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The report is opened in a browser. Where none may be installed, that test says so and is skipped.
chromium:
	@command -v chromium > /dev/null \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } \
	  || echo "chromium is not installed: the report will not be opened in a browser"

check: lint types imports  ## ruff, mypy --strict, import directions

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/python -m pytest tests/test_architecture.py

bench: $(INSTALLED)  ## speed against the peers, measured side by side
	PYTHONPATH=tests $(BIN)/python -m benchmarks

soak: $(INSTALLED)  ## a million broken inputs, two hundred killed releases, crowds of processes against a cap
	$(BIN)/python -m soak.ledger
	$(BIN)/python -m soak.kills
	$(BIN)/python -m fuzz

reproduce: $(INSTALLED)  ## every experiment again, into docs: about 75 minutes on two cores, and it can be interrupted
	$(BIN)/dpmerge reproduce all -o docs

audit: $(INSTALLED)  ## attack every built-in scenario and write the table of docs/audit.md: some minutes
	mkdir -p docs/audit
	$(BIN)/dpmerge audit --scenario all --json > docs/audit/scenarios.new
	mv docs/audit/scenarios.new docs/audit/scenarios.json
	$(BIN)/python -m dpmerge.audit.page docs/audit/scenarios.json docs/audit.md
	$(BIN)/dpmerge audit --scenario logistic --picture docs/audit/logistic.png

examples: $(INSTALLED)  ## train the example portfolios again, into .examples
	$(BIN)/python examples/mnist/train.py --out .examples/mnist
	$(BIN)/python examples/probe/train.py --out .examples/probe

clean:  ## remove everything that was set up
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
