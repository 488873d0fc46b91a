# Each target does all its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# A process per core (tests/conftest.py counts them) of one thread each; a file stays in one process, and so do its fixtures.
PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder
# On a terminal it is shown what is downloaded; a log needs no bar.
QUIET := $(shell test -t 2 || echo --quiet)
# uv takes a fifth of pip's time, and does not read how pip was told where wheels are; pip stands in where uv cannot.
COMMA := ,
PIP_SAYS = $(shell $(PYTHON) -m pip config get global.$(1) 2>/dev/null)
LINKS = $(or $(PIP_FIND_LINKS),$(call PIP_SAYS,find-links))
INDEX = $(or $(PIP_INDEX_URL),$(call PIP_SAYS,index-url))
WHERE = UV_FIND_LINKS="$(subst $() $(),$(COMMA),$(strip $(LINKS)))" $(if $(INDEX),UV_DEFAULT_INDEX="$(INDEX)")
install = { $(BIN)/pip install --quiet uv && $(WHERE) $(BIN)/uv pip install $(QUIET) --python $(BIN)/python $(1); } \
	|| $(BIN)/pip install $(QUIET) --use-pep517 $(1)
# Where bytecode isn't kept, each process compiles every module again and pytest rewrites every test again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo gallery simulations test test-slow test-gpu test-oldest lint docs clean
.DELETE_ON_ERROR:

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the toolkit and what it needs into .venv (1.9 GB, torch is most of it): once, 1 to 10 minutes."
	$(call install,--constraint constraints.txt --editable .)
	@touch $@

# What .venv/base has, and more: installed at once, or pip would resolve everything twice.
.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the toolkit, its tests and linters into .venv (2.6 GB, torch is most of it): once, 2 to 10 minutes."
	$(call install,--constraint constraints.txt --editable '.[dev]')
	@touch .venv/base $@

# The main job, offline: three regimes of the embedded BERT on a built-in task, three seeds each, and their report.
demo: .venv/base
	@echo "Nine runs and their report: 2 to 5 minutes on two cores."
	$(BIN)/python -m toolkit study experiments/three_regimes.py --workers 2 --output-dir runs/demo --out runs/demo_report

# The first screens of reports/ on one page: build/gallery/index.html.
gallery: .venv/base
	@echo "The first screens of all reports, drawn anew: 1 to 3 minutes."
	$(BIN)/python experiments/gallery.py --out build/gallery

# How p, q and intervals hold their level, simulated: the figures of experiments/benchmarks/NOTES.md.
simulations: .venv/base
	@echo "Level and power of q, then the coverage of intervals: 5 to 10 minutes on two cores."
	OMP_NUM_THREADS=1 $(BIN)/python experiments/benchmarks/levels.py
	OMP_NUM_THREADS=1 $(BIN)/python experiments/benchmarks/coverage.py

test: .venv/dev
	$(BIN)/python $(PYTEST) -m "not slow"

test-slow: .venv/dev
	$(BIN)/python $(PYTEST) -m slow

# What trains and scores, on a GPU; all other targets hide it. By hand: CI has none.
test-gpu: .venv/dev
	TEST_ON_GPU=1 $(BIN)/python $(PYTEST) -m "not slow" tests/training tests/models tests/questions $(addprefix tests/test_,lora.py new_tokens.py pipeline.py saving.py families.py)

# The fast tests on the oldest versions that pyproject.toml admits: a lower bound is a promise too.
test-oldest:
	@echo "Installing the oldest versions into .venv-oldest, then the fast tests on them: 30 minutes and more."
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet uv
	$(WHERE) .venv-oldest/bin/uv pip compile --quiet --resolution lowest-direct --extra dev pyproject.toml -o .venv-oldest/oldest.txt
	$(WHERE) .venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python -r .venv-oldest/oldest.txt --editable .
	.venv-oldest/bin/python $(PYTEST) -m "not slow"

lint: .venv/dev
	@echo "Style, types (mypy: the first time 1 to 3 minutes) and layers."
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The reference, a page per module, from the docstrings: build/docs/index.html.
docs: .venv/dev
	@echo "Writing build/docs/index.html: half a minute to two minutes."
	$(BIN)/pdoc --docformat numpy --output-directory build/docs toolkit $(addprefix toolkit.,analysis comparison config data families models naming pipeline questions reporting schema snapshots studies training)

clean:
	rm -rf .venv .venv-oldest build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
