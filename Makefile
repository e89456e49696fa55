# Each target does its own set-up: the first call downloads about 400 MB, later calls start at once.
PYTHON ?=
VENV ?= .venv
OLDEST_VENV ?= .venv-oldest
VLLM_VENV ?= .venv-vllm
# A CPU build of torch. Empty (make TORCH_INDEX= ...) takes PyPI's: CUDA on Linux, several GB.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# make demo: a chain of drafted tokens, EAGLE-2's trees, then GliDe; sized to end within ten minutes on two slow cores.
DEMO_CHAIN ?= host,fixed:5,heuristic,svip:threshold=0.3
DEMO_TREE ?= host,svip:threshold=0.3,svip:threshold=0.3@min_probability=0.1
DEMO_GLIDE ?= host,svip:threshold=0.3
DEMO_OPTIONS ?= --prompts builtin --limit 8 --max-turns 1 --max-new-tokens 20 --dtype auto
DEMO_OUT ?= runs/demo

# Passed on to pytest: make test ARGS="-k svip -x"
ARGS ?=

# Idle OpenMP threads that spin take the core another thread needs: up to 7 times slower on a shared machine.
export OMP_WAIT_POLICY ?= PASSIVE
export PYTHON TORCH_INDEX

.DEFAULT_GOAL := help
.PHONY: help setup setup-oldest setup-vllm demo test test-slow test-oldest test-vllm coverage lint format clean

help:
	@echo "make demo         compare SVIP with other draft lengths on the embedded models; writes $(DEMO_OUT)/*/report.html"
	@echo "make test         the fast tests"
	@echo "make test-slow    the tests that need the embedded models or minutes"
	@echo "make test-oldest  the fast tests on the oldest supported transformers, in $(OLDEST_VENV)"
	@echo "make test-vllm    the tests on vLLM, on a CPU (x86-64 Linux), in $(VLLM_VENV)"
	@echo "make coverage     the fast tests, with the lines they miss"
	@echo "make lint         ruff and mypy; make format rewrites the files"
	@echo "make clean        remove the environments, caches and $(DEMO_OUT)"
	@echo "All set-up is done by each of them; Python 3.11 or newer is all they need."

setup:
	@sh .ci/setup.sh $(VENV) constraints.txt

setup-oldest:
	@sh .ci/setup.sh $(OLDEST_VENV) constraints-oldest.txt

setup-vllm:
	@sh .ci/setup.sh $(VLLM_VENV) constraints-vllm.txt locked

demo: setup
	$(VENV)/bin/svip-bench run --host transformers --policies $(DEMO_CHAIN) $(DEMO_OPTIONS) --out $(DEMO_OUT)/transformers
	$(VENV)/bin/svip-bench run --host eagle2 --policies $(DEMO_TREE) $(DEMO_OPTIONS) --out $(DEMO_OUT)/eagle2
	$(VENV)/bin/svip-bench run --host glide --policies $(DEMO_GLIDE) $(DEMO_OPTIONS) --out $(DEMO_OUT)/glide
	@echo "Reports: $(DEMO_OUT)/*/report.html   Figures: $(DEMO_OUT)/*/summary.json"

test: setup
	$(VENV)/bin/pytest $(ARGS)

test-slow: setup
	$(VENV)/bin/pytest -m "slow and not upstream" $(ARGS)

test-oldest: setup-oldest
	$(OLDEST_VENV)/bin/pytest $(ARGS)

# vLLM's defaults start a process a model and threads that spin: many times slower on a few cores.
test-vllm: export VLLM_ENABLE_V1_MULTIPROCESSING ?= 0
test-vllm: export OMP_NUM_THREADS ?= 1
test-vllm: export VLLM_CPU_OMP_THREADS_BIND ?= nobind
test-vllm: export VLLM_CPU_KVCACHE_SPACE ?= 2
test-vllm: export VLLM_NO_USAGE_STATS ?= 1
test-vllm: setup-vllm
	$(VLLM_VENV)/bin/pytest -m vllm $(ARGS)

coverage: setup
	$(VENV)/bin/pytest --cov=svip_adapters --cov=adapters --cov-report=term-missing $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy svip_adapters adapters evaluation tests/typing/api.py

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST_VENV) $(VLLM_VENV) $(DEMO_OUT) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
