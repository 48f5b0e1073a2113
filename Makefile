# Every target does its own set-up: a virtual environment with the pinned packages of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all test-gpu fuzz models lint bench stats clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,pandas,triton,bench,export]"
	touch .venv/ready

demo: .venv/ready
	$(BIN)/headwise demo

# A file of tests is run by one process, and two processes share the files.
AT_ONCE := -n 2 --dist loadfile

# The tests speak of the CPU, so a GPU that happens to be there is hidden from them.
test: .venv/ready
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest $(AT_ONCE) -m "not slow and not gpu"

test-all: .venv/ready
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest $(AT_ONCE) -m "not gpu"

test-gpu: .venv/ready
	$(BIN)/python -m pytest -m gpu

# Four minutes of random calls of the kernels, on a GPU.
fuzz: .venv/ready
	$(BIN)/python -m tests.ops.fuzz

# Every verb on a tiny model of every family of transformers: about 20 minutes on 2 cores.
models: .venv/ready
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m tests.hf.survey --write docs/models.md

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/ready
	$(BIN)/python -m benchmarks

# Lines, modules, settings, modules loaded, words.
stats: .venv/ready
	$(BIN)/python -m benchmarks.stats

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache
