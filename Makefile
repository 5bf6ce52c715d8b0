# Every target works in a fresh clone: it sets up .venv once, and again only when pyproject.toml or constraints.txt change.
#
#   make report                     smoke scale: all replications, minutes on a laptop
#   make report SCALE=workstation   a longer budget; SCALE=paper is the paper's own
#   make report PAPER=impala_2018   one replication
#   make report CORES=4             fewer cores than the machine has
#   make peers SCALE=workstation    other people's libraries, each in .peers/<name>, and the runs that they carry out
#   make test PYTHON=python3.12     another interpreter for the set-up
#   make test HASHED=1              a set-up that takes only files whose SHA-256 constraints-hashed.txt has (all but torch)

PYTHON ?= python3
CORES ?= all
HASHED ?=
SCALE ?=
PAPER ?=

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,rliable,docs,trackers
READY := $(VENV)/.ready
LOG := $(VENV)/install.log
# Hundreds of short processes import this package: without kept bytecode each compiles it, a fifth of its start.
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

# A copied or moved checkout, or an interpreter that is gone, needs a new environment: its scripts hold absolute paths.
ifneq ($(shell test -x $(BIN)/python && cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

.PHONY: help setup report peers test docs system slurm browser lint learn regression mutation chaos clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  Options: SCALE=smoke|workstation|paper  PAPER=<key>_<year>  CORES=<n>  PYTHON=<interpreter>  HASHED=1"

setup: $(READY) ## make .venv, and nothing else
	@echo "$(VENV) is ready; to use it: source $(BIN)/activate"

report: $(READY) ## run the replications and write reports/*.pdf
	@$(BIN)/python -m snakemake --rerun-incomplete --rerun-triggers mtime params input --cores $(CORES) $(PAPER) $(if $(SCALE),--config scale=$(SCALE))
	@ls -1 reports/*.pdf

peers: $(READY) ## other people's libraries as controls: their environments, and their runs of a SCALE (hours)
	@$(BIN)/python -m snakemake --rerun-incomplete --rerun-triggers mtime params input --cores $(CORES) peers $(if $(SCALE),--config scale=$(SCALE))

# Several processes, each with whole files; files with many slow tests first. One more than there are cores, since
# tests of clusters and processes wait for much of their time.
test: $(READY) ## fast tests
	@$(BIN)/python -m pytest -q -n $$(( $$(nproc) + 1 )) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

docs: $(READY) ## the documentation site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "site/index.html"

system: $(READY) ## tests that kill processes, train on Ray, drive whole workflows, or ask every game and task (minutes)
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist load -m "system and not learning"

slurm: $(READY) ## the workflow on a real SLURM, which is installed (as root, Debian), started and stopped again
	@$(BIN)/python -m pytest -q -rs -n 3 -o faulthandler_timeout=600 -m slurm --durations=0 tests/slurm

browser: $(READY) ## reports in headless Chromium, which is installed where it is missing (as root, Debian)
	@DDRL_NEEDS_BROWSER=1 $(BIN)/python -m pytest -q -rs -m browser tests/report

lint: $(READY) ## ruff, mypy, snakefmt, hadolint, shellcheck, pip check
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m ruff format --quiet --check . || { echo "lint: run '$(BIN)/ruff format'" >&2; exit 1; }
	@$(BIN)/python -m mypy
	@$(BIN)/python -m snakefmt --check Snakefile workflows
	@$(BIN)/hadolint workflows/containers/Dockerfile
	@$(BIN)/shellcheck .ci/run workflows/containers/install.sh
	@$(BIN)/python -m pip --disable-pip-version-check check

learn: $(READY) ## learning tests: train until a threshold is passed (long)
	@$(BIN)/python -m pytest -q -o faulthandler_timeout=7200 -m learning

regression: $(READY) ## results, learning and speed against what was committed, and planted faults against these checks (minutes)
	@failed=0; \
	$(BIN)/python -m ddrl.regression check || failed=1; \
	$(BIN)/python -m pytest -v --no-header -rs -o faulthandler_timeout=7200 -m regression --junit-xml=results/regression/faults.xml || failed=1; \
	exit $$failed

mutation: $(READY) ## planted faults that the fast tests must find, one at a time in a copy (a quarter of an hour)
	@$(BIN)/python -m tests.mutation --results tests/mutation/results.json

# Of its own size with, for instance: make chaos CHAOS='--kills 100 --systems serial'
CHAOS ?= --kills 1000 --faults 1000 --messages 1000000 --files 500 --soak 4
chaos: $(READY) ## kills, faults, fuzzed messages, bad files and a soak: what real runs lose by them (hours)
	@$(BIN)/python -m tests.chaos $(CHAOS) --json results/regression/chaos.json

clean: ## remove the environment, caches and smoke results; longer runs and reference results stay
	@rm -rf $(VENV) results/smoke build dist site ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .snakemake/log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt constraints-hashed.txt
	@command -v $(PYTHON) >/dev/null || { echo "set-up: there is no '$(PYTHON)'; name an interpreter: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "set-up: ddrl needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "set-up: '$(PYTHON)' cannot make virtual environments; on Debian or Ubuntu: apt install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	@echo "set-up 1/4: virtual environment in $(VENV) (once; log: $(LOG))"
	@if [ "$$(cat $(READY) 2>/dev/null)" != '$(CURDIR)' ]; then rm -rf $(VENV); fi
	@rm -f $(READY)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@: > $(LOG)
	@$(PACKAGES)
	@echo "set-up 4/4: check"
	@$(BIN)/python -m pip check >>$(LOG) 2>&1 || { tail -n 5 $(LOG); echo "set-up: packages do not fit together; see $(LOG)" >&2; exit 1; }
	@echo '$(CURDIR)' > $(READY)

install = $(BIN)/python -m pip --disable-pip-version-check install --quiet $(1) >>$(LOG) 2>&1 \
	|| { tail -n 15 $(LOG); echo "set-up: pip failed; see $(LOG), then run make again" >&2; exit 1; }
pip = $(call install,-c constraints.txt $(1))
hashed = $(call install,--no-deps --no-build-isolation --require-hashes -r $(1))

# With hashes: setuptools first, which builds what is published as source alone; torch last, or pip would take what it needs
# besides unchecked. torch itself, and what its build for CUDA brings, is checked by its version alone.
ifeq ($(HASHED),)
define PACKAGES
echo "set-up 2/4: torch (the largest download)"; \
$(call pip,"$$(grep -x 'torch==[0-9.]*' constraints.txt)"); \
echo "set-up 3/4: the other packages"; \
$(call pip,-e '.[$(EXTRAS)]')
endef
else
define PACKAGES
echo "set-up 2/4: packages, checked by hash"; \
sed -n '/^setuptools==/,/[^\\]$$/p' constraints-hashed.txt >$(VENV)/setuptools.txt; \
$(call hashed,$(VENV)/setuptools.txt); \
$(call hashed,constraints-hashed.txt); \
echo "set-up 3/4: torch (the largest download), and ddrl"; \
$(call pip,"$$(grep -x 'torch==[0-9.]*' constraints.txt)"); \
$(call install,--no-deps --no-build-isolation -e .)
endef
endif
