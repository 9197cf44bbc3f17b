# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the demo needs, and what the tests need beside it. The second may grow; the first must not notice.
DEMO_INSTALLED := $(VENV)/.demo-installed
INSTALLED := $(VENV)/.installed
# Every install uses the versions that were tested together. Byte code is written when a module is first imported:
# compiling all of scipy takes longer than the demo.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test quick check docs package bench soak reproduce usefulness audit examples chromium lint types imports clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The demo needs no extra: the report carries what draws it.
$(DEMO_INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(INSTALLED): $(DEMO_INSTALLED)
	$(INSTALL) --upgrade "pip>=25.1"  # --group is new there
	$(INSTALL) --editable ".[notebook,report,torch,lightning,huggingface,lm-eval,postgres,timestamps,remote,ray,dask,blake3,numba]" --group dev --group docs
	touch $@

demo: $(DEMO_INSTALLED)  ## the whole story on a shipped portfolio: inspect, plan, merge, verify, audit, ledger, report
	$(BIN)/python examples/demo.py

# A file of tests stays on one core: its fixtures are made once.
test: $(INSTALLED) chromium  ## all tests, doctests included, on all cores; the slowest ten are listed
	$(BIN)/python -m pytest --numprocesses logical --dist loadfile --durations 10

quick: $(INSTALLED)  ## tests that train nothing and start no browser, server or process
	$(BIN)/python -m pytest --numprocesses logical --dist loadfile --durations 10 -m quick

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

# NO_MKDOCS_2_WARNING: what the theme has to say about its successor is in docs/decisions/0017-documentation-site.md.
docs: $(INSTALLED)  ## the documentation as a site, build/site/index.html: strictly, and without the network
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict

package: $(INSTALLED)  ## build sdist and wheel, install the wheel without extras, and release a model with it
	PYTHON=$(BIN)/python .ci/package

bench: $(INSTALLED)  ## speed against the peers, measured side by side, and what got worse since ratios.json
	PYTHONPATH=tests $(BIN)/python -m benchmarks

soak: $(INSTALLED)  ## a million broken inputs, three hundred killed releases, crowds of processes against a cap
	$(BIN)/python -m soak.ledger
	$(BIN)/python -m soak.kills
	$(BIN)/python -m soak.remote_kills
	$(BIN)/python -m soak.lost_workers
	$(BIN)/python -m fuzz

reproduce: $(INSTALLED)  ## every experiment again, into docs: some four hours on two cores, and it can be interrupted
	$(BIN)/python -m reproduction all -o docs
	$(BIN)/python -m reproduction cifar10 --preset medium -o docs

usefulness: $(INSTALLED)  ## is a plan at least as good as the model one had? some 25 minutes, and it can be interrupted
	$(BIN)/python -m usefulness

audit: $(INSTALLED)  ## attack every scenario and write the table of docs/audit.md: some minutes
	mkdir -p docs/audit
	$(BIN)/python -m reproduction audit --scenario all --json > docs/audit/scenarios.new
	mv docs/audit/scenarios.new docs/audit/scenarios.json
	$(BIN)/python -m reproduction.audit_page docs/audit/scenarios.json docs/audit.md
	$(BIN)/dpmerge audit --scenario logistic --picture docs/audit/logistic.png

examples: $(INSTALLED)  ## train the example portfolios again, into .examples
	$(BIN)/python examples/mnist/train.py --out .examples/mnist
	$(BIN)/python examples/probe/train.py --out .examples/probe

.PHONY: tutorials
tutorials: $(INSTALLED)  ## run the notebooks of docs/tutorials again, and store what they show: two minutes
	$(BIN)/python tests/tutorial_runs.py

clean:  ## remove everything that was set up
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
