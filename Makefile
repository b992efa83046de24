# smalti. `make demo` and `make test` are the two commands a newcomer needs.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
# torch's build for CPUs is not on PyPI: it is in a folder of wheels that pip knows of, or else in PyTorch's own index.
WHEELS = $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
TORCH_CPU = $(if $(WHEELS),--find-links $(WHEELS),--extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)
UV_VERSION := 0.13.9
export HF_HUB_OFFLINE := 1
# Without .pyc files every process compiles what it imports anew: Airflow and Ray start many, and each takes seconds longer.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help env vllm demo stop test lint bench prove docs lock format clean

help: ## show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

env: $(VENV)/.installed ## make .venv from requirements.txt

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	UV_HTTP_TIMEOUT=300 $(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

vllm: $(VLLM)/.installed ## make .venv-vllm: vLLM for CPUs, for the tests

$(VLLM)/.installed: requirements-vllm.txt pyproject.toml $(wildcard tests/support/vllm_cpu/cpu_*) | $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(VLLM)
	UV_HTTP_TIMEOUT=300 $(BIN)/uv pip sync --quiet --python $(VLLM)/bin/python $(TORCH_CPU) requirements-vllm.txt
	$(BIN)/uv pip install --quiet --python $(VLLM)/bin/python --no-deps --editable .
	cp tests/support/vllm_cpu/cpu_* "$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

demo: env ## the whole line on real photographs, through Airflow
	$(BIN)/python -m demo.run

stop: ## end what `make demo` started
	$(BIN)/python -m demo.stop

test: env ## lint, then every test
	$(MAKE) --jobs 2 lint vllm
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not prove" --durations 25

lint: env ## ruff, mypy --strict, import-linter, yamllint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/yamllint --strict .

format: env ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env ## benchmarks: ratios, measured in one run
	$(BIN)/python -m benchmarks

prove: env ## long proofs: kill campaigns and repeated runs
	$(BIN)/pytest -m prove --timeout 3600 tests

docs: env ## write the generated pages of docs/reference
	$(BIN)/python -m docs.generate

lock: env ## compile requirements.txt and requirements-vllm.txt from their .in
	$(BIN)/uv pip compile requirements.in --override requirements-overrides.txt --python-version 3.11 --no-annotate \
		--quiet --custom-compile-command 'make lock' --output-file requirements.txt
	$(BIN)/uv pip compile requirements-vllm.in --override requirements-vllm-overrides.txt --python-version 3.11 --no-annotate \
		--quiet --custom-compile-command 'make lock' --no-emit-find-links --no-emit-index-url $(TORCH_CPU) --output-file requirements-vllm.txt

clean: stop ## remove what was made here, the environments too
	rm -rf .demo $(VENV) $(VLLM) .cache
