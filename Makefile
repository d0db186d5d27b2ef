# `make demo` and `make test` are all a newcomer needs; each makes .venv the first time.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint format bench docs clean

demo: .venv/ready
	$(BIN)/longtail demo

test: .venv/ready-to-test
	$(BIN)/python -m pytest -n 2

test-slow: .venv/ready-to-test
	$(BIN)/python -m pytest -m slow

lint: .venv/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: .venv/ready-to-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Warnings are errors; what the pages say to run is run; links inside the project lead somewhere.
docs: .venv/ready-to-document
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/links.py docs/_build/html
	$(BIN)/python -m pytest tests/test_docs.py

bench: .venv/ready-to-test
	$(BIN)/python -m benchmarks

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

.venv/ready-to-test: .venv/ready
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@

.venv/ready-to-document: .venv/ready-to-test
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	@touch $@

clean:
	rm -rf .venv build dist docs/_build
