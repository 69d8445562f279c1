# Everything a fresh checkout needs: `make demo`, `make test`. Only Python >= 3.10 with venv, git and make are taken for granted.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test test-slow check format docs bench clean

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/hone demo $(ARGS)

test: $(VENV)/.installed check
	$(BIN)/pytest -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed
	$(BIN)/pytest -m slow $(ARGS)

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	$(BIN)/hone config docs docs

bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[bench]"
	$(BIN)/python benchmarks/grpo_step.py $(ARGS)

clean:
	rm -rf $(VENV) runs build dist *.egg-info
