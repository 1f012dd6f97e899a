# make demo   train, calibrate and compare networks on real data; prints where the report lies
# make test   the test suite
# make check  all that CI runs
# make torture  damages files, stores and processes in every way we know, and counts what came of it
# make mutants  breaks every loss, metric and calibrator in three ways, and prints what no test catches
# make bench  calibrant against its peers, minutes; make bench-full waits for all of them and rewrites docs/benchmarks.md
PYTHON ?= python3
# Which build of torch: a CPU or CUDA build is chosen here, see the README
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check lint types layers test-slow test-other test-large torture mutants bench bench-full clean

demo: .venv/train.done
	$(BIN)/calibrant demo

test: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not large and not torture"

# every campaign of damage at full size: tried, refused, recovered, silent, traceback, stuck
torture: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m torture tests/torture

test-slow: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "slow and not torture" tests

# the numerical tests with the plainest instructions: none may hang on one processor's last bit
test-other: .venv/dev.done
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not large and not torture" \
	  tests/calibrators tests/contracts tests/losses tests/metrics tests/theory tests/test_bins.py tests/test_nn.py \
	  tests/test_assess.py tests/test_measure.py tests/test_predictions.py tests/test_selection.py

test-large: .venv/dev.done
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -q -m large tests

mutants: .venv/dev.done
	$(BIN)/python tests/mutants.py

check: lint types layers test test-other test-slow demo

bench: .venv-bench/done
	.venv-bench/bin/python -m benchmarks --size quick --out out

bench-full: .venv-bench/done
	.venv-bench/bin/python -m benchmarks --size full --out docs

.venv-bench/done: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[train]"
	.venv-bench/bin/python benchmarks/install.py constraints.txt
	touch $@

lint: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.done
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: .venv/dev.done
	$(BIN)/lint-imports

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'Python 3.11 or newer is needed, got ' + sys.version.split()[0] + '; say make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv

.venv/torch.done: .venv/bin/python constraints.txt
	$(PIP) $(TORCH)
	touch $@

.venv/train.done: .venv/torch.done pyproject.toml
	$(PIP) --editable ".[train]"
	touch $@

.venv/dev.done: .venv/torch.done pyproject.toml
	$(PIP) --editable ".[dev]"
	touch $@ .venv/train.done

clean:
	rm -rf .venv .venv-bench runs out
