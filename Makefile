# Every target sets itself up in .venv: `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# The versions that were tested; `make install CONSTRAINTS=` takes the newest ones that pyproject.toml allows.
CONSTRAINTS ?= --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install constraints demo test lint test-slow test-oldest attack bench docs clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## Create .venv and install labelwise with everything its tests need

# uv installs the same packages as pip in a tenth of the time and hard-links them from its cache.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

constraints: $(INSTALLED) ## Take the newest version of every package and write them to constraints.txt; then `make test`
	$(BIN)/uv pip install --quiet --python $(BIN)/python --upgrade uv --editable '.[dev]'
	$(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable > constraints.txt
	@touch $(INSTALLED)

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

test-oldest: $(INSTALLED) ## Run the tests with the oldest versions that pyproject.toml allows, in .venv-oldest
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	$(BIN)/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct --editable '.[dev]'
	.venv-oldest/bin/pytest -n 2

attack: $(INSTALLED) ## Run every attack: hostile files, models and requests, kills, full disks
	$(BIN)/pytest -n 2 -m attack tests/attack

bench: $(INSTALLED) ## Compare speed with other implementations, each in one run
	$(BIN)/python -m benchmarks.speed all --out benchmarks/results
	$(BIN)/python benchmarks/metrics.py --json benchmarks/results/metrics.json
	$(BIN)/python benchmarks/first_second.py --json benchmarks/results/first-second.json
	$(BIN)/python benchmarks/busy_machine.py --json benchmarks/results/busy-machine.json
	$(BIN)/python -m benchmarks.performance_page

docs: $(INSTALLED) ## Build the documentation site in site/; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove what the targets made
	rm -rf .venv .venv-oldest build dist demo site .pytest_cache .mypy_cache .ruff_cache
