# make venv | demo | test | test-slow | bench | lint: everything runs in .venv, which is made as needed.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.h)

.PHONY: venv demo test test-slow bench lint sanitize clean

venv: .venv/ready

.venv/ready: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[asr,align,gpu,plot,ray,synth,dev]'
	touch $@

demo: venv
	$(BIN)/brctc demo

test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow and not exhaustive"

test-slow: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "slow and not exhaustive"

bench: venv
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ctc_loss.py --json build/ctc_loss.json

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The native tests in a build with the address and undefined-behaviour sanitizers.
sanitize: venv
	tests/sanitize.sh

clean:
	rm -rf .venv build
