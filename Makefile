# Each target sets up .venv by itself: Python >= 3.11, git and make are all it needs.
#
#   make serve [ARGS="--port 9000"]    make test [ARGS="-k refund"]    make lint    make bench    make clean
#   make exam [BASE_URL=… API_KEY=… MODEL=…]    make fuzz [EXAMPLES=500]
#
# PYTHON=/path/to/python3.12 chooses the interpreter of a new .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := serve
.PHONY: serve test lint exam fuzz bench clean

ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# As root pip warns about itself; .venv is ours to fill.
export PIP_ROOT_USER_ACTION := ignore

serve: .venv/.serve
	@exec $(BIN)/fermata serve $(ARGS)

# Several at a time, a file each: much of their time they wait for processes that they start. In the order of
# collection, acceptance first: xdist would begin with the files of most tests, which are not the longest.
TESTS_AT_ONCE ?= 3

test: lint
	@$(BIN)/pytest -q -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/.dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }

# The exam over the Open Responses schema, of a gateway of our own or of the API at BASE_URL (…/v1).
API_KEY ?= unused
MODEL ?= echo

exam: .venv/.dev
	@$(BIN)/pytest -q tests/acceptance/test_exam.py $(if $(BASE_URL),--base-url $(BASE_URL)) --api-key $(API_KEY) --model $(MODEL) $(ARGS)

# Made-up requests at random, EXAMPLES for each operation; `make test` sends a few, always the same.
EXAMPLES ?= 500

fuzz: .venv/.dev
	@$(BIN)/pytest -q tests/acceptance/test_fuzz.py tests/integration/test_fuzz_items.py tests/property --examples $(EXAMPLES) $(ARGS)

bench: .venv/.dev
	@exec $(BIN)/python -m tests.benchmarks $(ARGS)

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: a server is up before the tests' tools (Node among them) would have been fetched.
.venv/.serve: pyproject.toml constraints.txt .venv/.made
	@echo "Installing Fermata into .venv …"
	@$(PIP) install -qq --constraint constraints.txt --editable '.[client]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt .venv/.made
	@echo "Installing Fermata and its test tools into .venv …"
	@$(PIP) install -qq --constraint constraints.txt --editable '.[dev]'
	@touch .venv/.serve $@

# Debian ships Python without ensurepip; any pip on the machine can fill a .venv made without one.
.venv/.made:
	@set -e; python=""; \
	for candidate in $${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python="$$candidate"; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "Fermata needs Python 3.11 or newer; found none as $${PYTHON:-python3, python3.11 … python3.14}." >&2; \
	    echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	rm -rf .venv; \
	if "$$python" -c 'import ensurepip' 2>/dev/null; then \
	    "$$python" -m venv .venv; \
	elif "$$python" -m pip --version >/dev/null 2>&1; then \
	    "$$python" -m venv --without-pip .venv; \
	    "$$python" -m pip --disable-pip-version-check --python .venv/bin/python install --quiet pip; \
	else \
	    echo "This Python has neither ensurepip nor pip, so .venv cannot be made." >&2; \
	    echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	fi; \
	touch $@
