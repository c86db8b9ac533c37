# Each target sets up what it needs in .venv; the second run is quick.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
INSTALLED := $(VENV)/.installed

DEMO := $(VENV)/.demo

# Without bytecode every process would compile torch and its like anew: seconds each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-matrix lint format audit bench results docs dist clean

demo: $(DEMO)
	$(BIN)/python examples/demo.py

test: $(INSTALLED) lint
	$(BIN)/pytest -n 2 --dist worksteal -q

test-slow: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist worksteal -q -m slow

# The suite as other machines would run it, in build/matrix; hours, and it goes on where it stopped.
test-matrix:
	$(PYTHON) tools/test_matrix.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src docs examples studies tools .github *.md
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The statistical promises, each with a control that must be rejected; some minutes of one core.
audit: $(INSTALLED)
	$(BIN)/python -m studies.benchmarks.audit

bench: $(INSTALLED)
	$(BIN)/python -m studies.benchmarks.radius
	$(BIN)/python -m studies.benchmarks.flows
	$(BIN)/python -m studies.benchmarks.quasi_monte_carlo

# The figures of all result pages but the tabular study's; hours, and it goes on where it stopped.
# make results ARGS=--list prints pages, commands and processor time; ARGS=--fresh starts anew.
results: $(INSTALLED)
	$(BIN)/python -m studies.benchmarks.remake_pages $(ARGS)

# The site, in build/site. The variable keeps an announcement of the theme's makers off the terminal.
docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Source archive and wheel, in dist; the wheel is tried in an environment of its own.
dist: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	PYTHON=$(PYTHON) tools/check_dist.sh dist/*.whl

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS) -e ".[dev]"
	touch $@

# The demo alone needs a fraction of what the tests need.
$(DEMO): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(INSTALLED) || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS) -e ".[plots]"
	touch $@

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache
