# make run    train on handwritten digits by each strategy, and write report.html
# make test   the quick tests, in ten minutes on two cores, in four processes (JOBS=1: in one)
# make test-all   the other tests; both must pass before a change is merged
# make soak   bounds on times, and repetition; run it alone on a quiet machine, with Chromium and network
# make sites  our clusters on a real Slurm, brought up for the tests; as root, with Slurm installed
# make lab    JupyterLab with a copy of the notebooks in my_notebooks, which keeps what you change there
# make bench  time kernels and training steps on this machine
# make site   all documents, notebooks and examples as pages that need no network, in build/site
# make slides the decks, as pages that need no network, and as PDF if Chromium is installed
# make lint   check style and format
# MPI=openmpi: test, test-all, soak, run, lab and bench with Open MPI, which is installed beside MPICH
# Every target but clean first installs what it needs into .venv, if anything has changed.

VENV := .venv
PY := $(VENV)/bin/python
DONE := $(VENV)/.installed
# To use the site's MPI instead of MPICH from a wheel: make EXTRAS=all,dev
EXTRAS ?= mpich,all,dev
PIP := $(PY) -m pip --disable-pip-version-check
# mpi4py loads the MPI library in MPI4PY_LIBMPI, and everything else follows (launch/mpiexec.py).
MPI := mpich
BUILD := build
OPEN_MPI := .openmpi
ifeq ($(MPI),openmpi)
export MPI4PY_LIBMPI := $(CURDIR)/$(OPEN_MPI)/lib
else ifneq ($(MPI),mpich)
$(error MPI must be mpich or openmpi, got $(MPI))
endif
# Tests wait for about half of their time; see tests/README.md.
JOBS ?= 4
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Tests start hundreds of processes; let the first one keep the bytecode of our files for the others.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run test test-all soak sites lab bench notebooks record site slides lint clean

install: $(DONE) $(if $(filter openmpi,$(MPI)),$(OPEN_MPI)/.installed)

$(DONE): pyproject.toml constraints.txt Makefile
	@python=; for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; done; \
	if [ -z "$$python" ]; then echo "error: no python3 of version 3.11 or newer with venv on PATH; install one" >&2; exit 1; fi; \
	if ! $(PY) -c '' 2>/dev/null; then echo "creating $(VENV) with $$python"; $$python -m venv --clear $(VENV); fi
	@echo "installing into $(VENV); the first time, this downloads 0.65 GB, fills 2.9 GB and takes some minutes (larger files:)"
	@rm -f $@; { $(PIP) install --progress-bar off --constraint constraints.txt --editable '.[$(EXTRAS)]' && touch $@; } \
	  | sed -unE 's/^ *((Downloading|Using cached) .* MB\)).*/  \1/p; s/^ *Installing collected packages.*/  unpacking all files/p'
	@test -e $@

# In a folder of its own, because both wheels have an mpiexec.
$(OPEN_MPI)/.installed: constraints.txt $(DONE)
	@echo "installing Open MPI in $(OPEN_MPI)"
	@$(PIP) install --quiet --constraint constraints.txt --ignore-installed --prefix $(OPEN_MPI) openmpi
	@touch $@

run: install
	@$(PY) -m tutorial_dl run

PYTEST := $(PY) -m pytest --numprocesses $(JOBS) --dist loadgroup --no-loadscope-reorder
test: install
	@$(PY) tests/support/lines_by_room.py
	@$(PYTEST) -m "not thorough"

test-all: install
	@$(PYTEST) -m thorough

soak: install
	@$(PY) -m pytest tests/soak

sites: install
	@$(PY) -m pytest tests/sites

# Without this, JupyterLab asks PyPI for its latest version.
LAB_OPTIONS := --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate
# A copy of the course is opened, so that Git sees no changes. The root is above it, since notebooks link to docs.
MINE := my_notebooks
lab: install
	@$(PY) -m tutorial_dl notebooks copy $(MINE)
	@$(VENV)/bin/jupyter lab $(LAB_OPTIONS) --FileContentsManager.preferred_dir=$(MINE) \
	  $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

bench: install
	@$(PY) -m numba_kernels bench all -n 2
	@$(PY) -m tutorial_dl bench -n 2

# The course is run first (a quarter of an hour), for the figures; what has not changed is not run again.
notebooks: install
	@$(PY) -m tutorial_dl notebooks run --out $(BUILD)/notebooks

# Stores the outputs of that run in the notebooks (notebooks/record.py); best on a quiet machine.
record: notebooks
	@$(PY) notebooks/record.py $(BUILD)/notebooks

# Sphinx has an environment of its own.
SITE := $(BUILD)/site-env
OF_SITE := import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['site'])
$(SITE)/.installed: pyproject.toml constraints.txt | install
	@echo "installing Sphinx in $(SITE)"
	@$(PY) -m venv --clear $(SITE)
	@$(SITE)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt $$($(PY) -c "$(OF_SITE)")
	@touch $@

# What is built has no notes of Sphinx's, which fails (-W) if a link leads nowhere.
site: notebooks $(SITE)/.installed
	@$(PY) docs/site examples --out $(BUILD)/examples.json
	@$(PY) docs/site pages --notebooks $(BUILD)/notebooks --examples $(BUILD)/examples.json --out $(BUILD)/pages
	@rm -rf $(BUILD)/site
	@$(SITE)/bin/sphinx-build --quiet --fail-on-warning --jobs 2 --doctree-dir $(BUILD)/doctrees $(BUILD)/pages $(BUILD)/site
	@$(PY) docs/site texts $(BUILD)/site
	@$(PY) docs/site check $(BUILD)/site

# Measured once, and again if other numbers are asked for; to measure again, remove the file.
$(BUILD)/numbers.json: slides/measure.py | install
	@mkdir -p $(BUILD)
	@$(PY) slides/measure.py $@

# Marp is a package of npm, which comes with Node (Debian: apt install npm).
$(BUILD)/marp/.installed: slides/package.json | install
	@command -v npm > /dev/null || { echo "error: make slides needs npm (Debian: apt install npm)" >&2; exit 1; }
	@mkdir -p $(BUILD)/marp && cp slides/package.json $(BUILD)/marp/
	@cd $(BUILD)/marp && npm install --silent --no-audit --no-fund --no-package-lock
	@touch $@

MARP := $(BUILD)/marp/node_modules/.bin/marp --quiet --html --theme-set slides/theme.css
slides: notebooks $(BUILD)/numbers.json $(BUILD)/marp/.installed
	@$(PY) slides/render.py --notebooks $(BUILD)/notebooks --numbers $(BUILD)/numbers.json --out $(BUILD)/decks
	@$(MARP) -I $(BUILD)/decks -o $(BUILD)/slides
	@if command -v chromium > /dev/null; then CHROME_PATH=$$(command -v chromium) $(MARP) --pdf -I $(BUILD)/decks -o $(BUILD)/slides; \
	else echo "no PDF files: there is no program called chromium"; fi

lint: install
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check

clean:
	rm -rf $(VENV) $(OPEN_MPI) build *.egg-info report.html .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
