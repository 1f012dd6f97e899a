# make demo   train, calibrate and compare networks on real data; prints where the report lies
# make test   the test suite
# make check  all that CI runs
# make docs   the site, into out/docs/index.html; runs every tutorial and every picture of the gallery, and takes warnings
#             for errors; a copy of what it needs is installed once
# make torture  senseless keywords, tables of known meaning, broken files, flipped bits, full disks and kills, thousands of each
# make test-logs  the readers of evaluation logs against two versions of the packages that write them; the first time it
#             installs these packages, 4 GB and about ten minutes
# make lock   the hashes of all that calibrant[train] needs but torch, into requirements.lock; make lock-check downloads and
#             compares them; make sbom writes the bill of materials of a release, out/calibrant.cdx.json
# make mutants  breaks every loss, metric and calibrator in three ways, and prints what no test catches
# make dist   wheel and source archive in dist/, checked, and tried in an environment without extras
# make bench  calibrant against its peers, minutes; make bench-full waits for all of them and rewrites docs/benchmarks.md;
#             make bench-check holds our own speed, as ratios in one run, to that of benchmarks/ratios.json
PYTHON ?= python3
# Which build of torch: a CPU or CUDA build is chosen here, see the README
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check docs dist spelling lint names types layers test-busy test-slow test-other test-light test-types test-large test-logs torture mutants lock lock-check sbom bench bench-check bench-full clean

demo: .venv/train.done
	$(BIN)/calibrant demo

test: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not large and not torture"

# the same beside a busy process, which ends with the shell that starts it: no test may depend on how long something
# takes, or on which thread or process comes first
test-busy: .venv/dev.done
	$(BIN)/python -c "import os; parent = os.getppid(); any(os.getppid() != parent for _ in iter(int, 1))" & \
	$(MAKE) --no-print-directory test

test-slow: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "slow and not large and not torture" tests

# the tests of tensors with the plainest instructions, and without compiled kernels: none may hang on one processor's last bit
test-other: .venv/dev.done
	NUMBA_DISABLE_JIT=1 ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not large and not torture" \
	  tests/contracts tests/golden/test_methods.py tests/losses tests/nn/test_nn.py tests/nn/test_selection.py tests/theory

# all other quick tests, where neither torch nor compiled kernels are installed, with the plainest instructions of numpy
test-light: .venv-light/done
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4" OPENBLAS_CORETYPE=Nehalem OMP_NUM_THREADS=1 .venv-light/bin/python -m pytest -q -n 2 --dist worksteal \
	  -m "not slow and not large and not torture"

# the contracts of all methods, and the inputs, while the types and shapes of all arguments are checked, which doubles
# the time of every test
test-types: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not large and not torture" \
	  --jaxtyping-packages=calibrant,beartype.beartype \
	  tests/contracts tests/calibrators/test_files.py tests/_core/kernels/test_bins.py tests/assessment/test_measure.py tests/nn/test_nn.py tests/predictions/test_predictions.py

# every campaign of abuse as a whole; prints how often something was tried, refused, recovered, silent, stuck
torture: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m torture tests/torture

test-large: .venv/dev.done
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -q -m large tests

test-logs: .venv/dev.done .venv-logs/new/logs.done .venv-logs/old/logs.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/language_models/test_real_logs.py

.PRECIOUS: .venv-logs/%/packages.done
.venv-logs/%/packages.done: tools/evaluation_packages_%.txt
	$(PYTHON) -m venv .venv-logs/$*
	.venv-logs/$*/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	.venv-logs/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

.venv-logs/%/logs.done: .venv-logs/%/packages.done tools/write_evaluation_logs.py
	rm -rf .venv-logs/$*/logs
	OMP_NUM_THREADS=1 .venv-logs/$*/bin/python tools/write_evaluation_logs.py .venv-logs/$*/logs
	touch $@

mutants: .venv/dev.done
	$(BIN)/python tests/mutants.py

check: lint names spelling types layers test-busy test-types test-other test-light test-slow docs demo

docs: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore::DeprecationWarning -m sphinx -W --keep-going -q -b html docs out/docs
	@echo "out/docs/index.html: $$(find out/docs -name '*.html' | wc -l) pages, $$(ls out/docs/_images | wc -l) figures"

bench: .venv-bench/done
	.venv-bench/bin/python -m benchmarks --size quick --out out

# ratios in one run, held to those of benchmarks/ratios.json; BENCH=--write keeps the new ones
bench-check: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.check $(BENCH)

bench-full: .venv-bench/done
	.venv-bench/bin/python -m benchmarks --size full --out docs

# the wheel and the source archive, checked, and the wheel tried in an environment of its own, without torch and extras
dist: .venv/bin/python
	$(PIP) build==1.6.1 twine==7.0.0
	rm -rf dist .venv-dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	mkdir -p out && cd out && ../.venv-dist/bin/python ../tests/small_wheel.py

.venv-bench/done: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[train]"
	.venv-bench/bin/python benchmarks/install.py constraints.txt
	touch $@

# torch is chosen apart, a CPU or a CUDA build of another index; all else has one version, with the hashes of all its files
LOCK := .venv-lock/bin/uv pip compile pyproject.toml --extra train --constraint constraints.txt --universal \
  --generate-hashes --no-annotate --quiet --no-header

lock: .venv-lock/done
	echo torch > .venv-lock/apart
	$(LOCK) --excludes .venv-lock/apart --upgrade --output-file requirements.lock

lock-check: .venv-lock/done
	.venv-lock/bin/python -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
	  --requirement requirements.lock --dest .venv-lock/files
	rm -r .venv-lock/files

sbom: .venv-lock/done
	mkdir -p out
	sed "s/^dynamic = .*/version = $$(sed -n 's/__version__ = //p' src/calibrant/_core/version.py)/" pyproject.toml > out/pyproject.toml
	(grep ^torch== constraints.txt; cat requirements.lock) | .venv-lock/bin/cyclonedx-py requirements \
	  --pyproject out/pyproject.toml --mc-type library --output-reproducible --output-file out/calibrant.cdx.json -
	rm out/pyproject.toml

.venv-lock/done:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9 cyclonedx-bom==7.5.0
	touch $@

lint: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# names that mean nothing alone, and classes or constants with two meanings
names: .venv/dev.done
	$(BIN)/python tools/check_names.py

spelling: .venv/dev.done
	$(BIN)/codespell

# the package strictly; of benchmarks and tools, which no quick test runs, only that what they use exists
types: .venv/dev.done
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --project benchmarks --pythonpath $(BIN)/python

# import rules, and that their picture and table are current
layers: .venv/dev.done
	$(BIN)/lint-imports
	$(BIN)/python tools/draw_layers.py --check

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

.venv-light/done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-light
	.venv-light/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[excel]" \
	  duckdb hypothesis jsonschema pandas pyarrow pytest pytest-randomly pytest-xdist scikit-learn sqlglot
	touch $@

clean:
	rm -rf .venv .venv-light .venv-logs .venv-bench .venv-dist .venv-lock dist runs out docs/auto_* docs/reference/api docs/reference/command_line.md docs/sg_*
