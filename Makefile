# Every target sets itself up in .venv: `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint test-slow attack bench docs clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## Create .venv and install labelwise with everything its tests need

# uv installs the same packages as pip in a tenth of the time and hard-links them from its cache.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
	@touch $@

demo: $(INSTALLED) ## Tag some photos, draw a sample set, train HSQ and GAP, evaluate, predict, write demo/report.html
	$(BIN)/labelwise demo --out demo

test: lint ## Lint, type-check and run the tests
	$(BIN)/pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: $(INSTALLED) ## Also run the tests that take minutes
	$(BIN)/pytest -n 2 -m slow

attack: $(INSTALLED) ## Run every attack: hostile files, models and requests, kills, full disks
	$(BIN)/pytest -n 2 -m attack tests/attack

bench: $(INSTALLED) ## Compare speed with other implementations, each in one run
	$(BIN)/python -m benchmarks.speed all --out benchmarks/results
	$(BIN)/python benchmarks/metrics.py --json benchmarks/results/metrics.json
	$(BIN)/python benchmarks/first_second.py --json benchmarks/results/first-second.json
	$(BIN)/python -m benchmarks.performance_page

docs: $(INSTALLED) ## Build the documentation site in site/; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove what the targets made
	rm -rf .venv build dist demo site .pytest_cache .mypy_cache .ruff_cache
