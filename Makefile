# Works with GNU Make 3.81 or newer (what macOS ships) and any POSIX shell.

VENV   := .venv
# The first of these that is Python 3.11 or newer makes the virtual environment.
# To use another one beside it: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3 python3.13 python3.12 python3.11
DIST   := dist
# Empty: make lock changes only what pyproject.toml asks for.
LOCK_ARGS := --upgrade
# More words for the program that a target runs: make test ARGS="-k pointer"
ARGS   :=

PY    := $(VENV)/bin/python
PIP   := $(PY) -m pip -qq --disable-pip-version-check --no-input
STAMP := $(VENV)/.installed

# mypy takes folders: `mypy -p sexton` silently checks only a part of a namespace.
TYPED := schemas/sexton core/sexton tracing/sexton holder/sexton worker/sexton tests \
         $(if $(wildcard benchmarks/*.py),benchmarks)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check lint types imports drift cov bench schemas rules install dist lock clean distclean FORCE

help: ## say what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## run the whole of it on this machine, on a transcript that ships with it or on FILE=...
	$(VENV)/bin/sexton demo $(if $(FILE),"$(FILE)") $(ARGS)

test: $(STAMP) ## run all tests (ARGS="-k pointer" for some)
	$(PY) -m pytest $(ARGS)

check: lint types imports drift ## the next four (make -k check goes on after a failure)

lint: $(STAMP) ## ruff: lint and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP) ## mypy, strict
	$(PY) -m mypy $(TYPED)

imports: $(STAMP) ## import-linter: who may import whom
	$(VENV)/bin/lint-imports --no-logo

drift: $(STAMP) ## are the generated schemas what the models say?
	$(PY) -m sexton.schemas.generate --check

cov: $(STAMP) ## run all tests and show what they did not reach
	$(PY) -m pytest --cov --cov-report=term $(ARGS)

bench: $(STAMP) ## measure
	$(PY) -m benchmarks $(ARGS)

schemas: $(STAMP) ## write the JSON Schemas and the AsyncAPI document anew from the models
	$(PY) -m sexton.schemas.generate

rules: ## write the alert rules anew as a Kubernetes resource
	{ printf '# Made by `make rules` from deploy/prometheus/sexton.rules.yaml: change that one.\n'; \
	  printf 'apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: sexton\nspec:\n'; \
	  grep -v '^#' deploy/prometheus/sexton.rules.yaml | sed '/./s/^/  /'; \
	} >deploy/k8s/components/monitoring/prometheusrule.yaml

install: $(STAMP) ## make the virtual environment and install from the lock (the others do it by themselves)

dist: $(STAMP) ## build the source distribution, and from it the wheel
	$(PY) -m build --no-isolation --outdir "$(DIST)"

lock: $(VENV)/bin/uv ## renew requirements/*.txt from pyproject.toml (LOCK_ARGS= keeps the pins that still fit)
	$(COMPILE) --extra dev --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --constraint requirements/dev.txt --output-file requirements/holder.txt pyproject.toml
	$(COMPILE) --constraint requirements/dev.txt --extra worker --extra pager --extra otel \
	  --output-file requirements/service.txt pyproject.toml
	printf 'hatchling\nsetuptools\n' | $(COMPILE) --constraint requirements/dev.txt --output-file requirements/build.txt -

# One lock for every platform and every Python from 3.11 on, whichever of them made it.
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(VENV)/bin/uv pip compile --quiet --no-config \
          --universal --python-version 3.11 --generate-hashes $(LOCK_ARGS)

clean: ## remove what was built and what the tools left behind
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(wildcard schemas core tracing holder worker tests benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## the virtual environment too
	rm -rf $(VENV)

# A virtual environment that was copied or moved together with its folder still leads to the old folder, and the
# tests would run the code over there. The stamp holds the folder that it was made in.
ifneq ($(wildcard $(STAMP)),)
ifneq ($(shell cat $(STAMP)),$(CURDIR))
$(STAMP) $(VENV)/bin/python: FORCE
endif
endif

$(STAMP): requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing what requirements/dev.txt pins into $(VENV); the first time takes a minute."
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@broken=$$($(PY) -m pip --disable-pip-version-check check) || { echo "$$broken" >&2; exit 1; }
	@printf '%s\n' "$(CURDIR)" >$@

# To renew a lock that cannot be installed any more, uv alone is enough.
$(VENV)/bin/uv: | $(VENV)/bin/python
	@$(PIP) install 'uv>=0.9'

USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

$(VENV)/bin/python:
	@for python in $(PYTHON); do \
	  if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then \
	    echo "Making $(VENV) with $$python, which is $$("$$python" -V)."; \
	    exec "$$python" -m venv --clear "$(VENV)"; \
	  fi; \
	done; \
	echo "Sexton needs Python 3.11 or newer, with its venv module. What was tried:" >&2; \
	for python in $(PYTHON); do \
	  if ! version=$$("$$python" -V 2>/dev/null); then echo "  $$python: not there" >&2; \
	  elif "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	    echo "  $$python: $$version without venv and ensurepip (Debian, Ubuntu: install python3-venv)" >&2; \
	  else echo "  $$python: $$version is too old" >&2; fi; \
	done; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	exit 1
