# minitrain: `make` lists what there is.
PYTHON ?= python3
RANKS ?= 4
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt
STAMPS := $(VENV)/ready
# TORCH is installed, unless PYTHON has a torch that is ACCEPTED OLDEST: at least as new as the oldest one promised, or,
# for `make oldest`, that one itself.
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
OLDEST := $(shell sed -n 's/.*"torch>=\([0-9.]*\).*/\1/p' pyproject.toml)
ACCEPTED := >=
# Material prints a banner about the future of MkDocs otherwise.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help tour gpu test everything ready lint pytest durations mutations oldest docs serve notebooks course lab bench claims plays wild clean

help:  ## list the targets
	@echo "make TARGET [PYTHON=a python ≥ 3.11] [RANKS=1 to 8]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | column -t -s '|'

tour: $(STAMPS)/package  ## run every demo, train a small GPT, and show the claims in one table (4 to 6 minutes)
	@$(BIN)/python -m minitrain.tour --ranks $(RANKS)

# Status 3: no surprise, but the second device has noted something.
gpu: $(STAMPS)/package  ## the first hour on GPUs: whether all of this works there, and how fast, in a report to send
	@if $(BIN)/python -c 'import sys, torch; sys.exit(torch.cuda.device_count() == 0)'; then \
	  $(BIN)/python -m minitrain.first_hour; \
	else \
	  echo "torch finds no GPU: this is a rehearsal of it, on the second device of the tests"; \
	  $(PIP) --group dev || exit 1; \
	  $(BIN)/python -m tests.second_device --gpus 2 -m minitrain.first_hour || test $$? -eq 3; \
	fi

READY := $(STAMPS)/package $(STAMPS)/dev $(STAMPS)/notebooks $(STAMPS)/site

test: $(READY)  ## format, lint, types, tests, ten notebooks, the site (7 to 20 minutes); CHAPTER=zero: one chapter's (1 minute), DEVICE=second: on GPUs made up
	@$(MAKE) --no-print-directory lint pytest
	@echo "all of it holds; \`make everything\` runs the rest: other numbers of ranks, all demos and notebooks, the browser"

everything: $(READY)  ## all that must hold: what the tests leave out, every demo and notebook, the tour (20 to 60 minutes)
	@rm -f .pytest_cache/parts.json
	@for part in lint pytest; do \
	  start=$$(date +%s); \
	  $(MAKE) --no-print-directory $$part TESTS=--everything || exit 1; \
	  $(BIN)/python -m tests.durations --took $$part $$(( $$(date +%s) - start )); \
	done
	@$(BIN)/python -m tests.durations --parts
	@echo "all of it holds"

ready: $(READY)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --min-severity error

ifdef CHAPTER
FOLDERS := $(filter-out mutations,$(patsubst tests/%/__init__.py,%,$(wildcard tests/*/__init__.py)))
$(if $(filter $(CHAPTER),$(FOLDERS)),,$(error CHAPTER=$(CHAPTER) has no tests; use one of $(FOLDERS)))
# Its own tests, those of its formulas and its lesson, and its demos.
TESTS := tests/$(CHAPTER) $(wildcard tests/*/test_$(CHAPTER).py) tests/test_demos.py --chapter $(CHAPTER)
endif
ifdef DEVICE
$(if $(filter second,$(DEVICE)),,$(error DEVICE=$(DEVICE) is unknown; use second))
# A chapter's demos on two GPUs, or all that the first rung runs on the second device.
TESTS := $(if $(CHAPTER),tests/second_device/test_demos.py -k 2-GPUs --chapter $(CHAPTER),tests/second_device)
endif

pytest: $(READY)
	@# tests/conftest.py says what stays on one worker, and what begins first
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder $(TESTS)

durations: $(READY)  ## the slowest files, tests and fixtures of the last run of the tests
	@$(BIN)/python -m tests.durations

mutations: $(STAMPS)/package $(STAMPS)/dev  ## make a thousand mistakes in the code, one at a time, and see which claim or test finds each (hours)
	@$(BIN)/python -m tests.mutations

oldest:  ## tests, tour and notebooks with the oldest torch that pyproject.toml promises, in an environment of its own
	@$(MAKE) --no-print-directory pytest TESTS=--everything VENV=$(VENV)-oldest TORCH=$(OLDEST) ACCEPTED='=='

docs: $(STAMPS)/site  ## build the site into site/ (a minute)
	$(BIN)/mkdocs build --strict

serve: $(STAMPS)/site  ## show the site at http://127.0.0.1:8000 and rebuild it as files change (a minute)
	$(BIN)/mkdocs serve

notebooks: $(STAMPS)/package $(STAMPS)/notebooks  ## execute the notebooks and rewrite them with their outputs
	$(BIN)/python tutorials/build.py execute

course: $(STAMPS)/package $(STAMPS)/notebooks $(STAMPS)/site  ## write a class's notebooks into course/students, and slides, solutions, exam and syllabus into course/teacher
	$(BIN)/python tutorials/build.py course course

lab: $(STAMPS)/package $(STAMPS)/notebooks  ## open the notebooks in JupyterLab; LAB=--no-browser and the like are handed on to it
	@# trusted, or pictures would be words until their cells are run
	@$(BIN)/jupyter trust --log-level=ERROR tutorials/*.ipynb >/dev/null
	@# from here, so that links to files work; as root, which one is in most containers, Jupyter wants to be told
	@# /doc opens a notebook with the file browser closed; tutorials/lab has the settings: no question about news
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/doc/tree/tutorials/00_matrix_product.ipynb \
	  --LabApp.app_settings_dir=$(CURDIR)/tutorials/lab $(LAB)

bench: $(STAMPS)/package  ## compare with what a user would pick instead: torch's own, side by side
	$(BIN)/python -m minitrain.benchmarks

claims: $(STAMPS)/package  ## run the tour on 4 ranks and rewrite docs/claims.json and its picture
	@$(BIN)/python -m minitrain.tour --ranks 4 --json docs/claims.json --table docs/images/claims.svg

plays: $(STAMPS)/package  ## record the player's scenes again, into docs/plays
	@$(BIN)/python -m minitrain.lessons.plays docs/plays

wild: $(STAMPS)/notebooks  ## list the names in other projects that the notebooks mention, by project, to check them
	@$(BIN)/python -m tests.wild

clean:  ## remove what was built and downloaded, and runs/ with all trainings
	rm -rf $(VENV) $(VENV)-oldest site course runs

# ---------------------------------------------------------------------------------------------------------------------
# Set-up. Exact versions stand in constraints.txt. A torch that PYTHON already has is used as it is.

$(STAMPS)/base: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name another one: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	@if found=$$($(PYTHON) -c "$$HAS_TORCH" 2>/dev/null); then \
	  echo "using the torch of $(PYTHON): $$found"; \
	  echo "$$found" | sed 's/.* in //' > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/given.pth; \
	  grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt; \
	fi
	@$(PIP) pip
	@touch $@

$(STAMPS)/package: $(STAMPS)/base
	@$(BIN)/python -c 'import torch' 2>/dev/null || echo "$$TORCH_COMING"
	@echo "installing minitrain and what it runs on"
	@$(PIP) --build-constraint $(VENV)/constraints.txt --editable .
	@# with a torch that PYTHON has, torchrun would be that of PYTHON's environment, which lacks our packages
	@test -x $(BIN)/torchrun || { echo "$$TORCHRUN" > $(BIN)/torchrun && chmod +x $(BIN)/torchrun; }
	@touch $@

$(STAMPS)/dev $(STAMPS)/notebooks $(STAMPS)/site: $(STAMPS)/base
	@echo "installing the group \"$(@F)\""
	@$(PIP) --group $(@F)
	@touch $@

define TORCHRUN
#!/bin/sh
exec "$$(dirname "$$0")/python" -m torch.distributed.run "$$@"
endef
export TORCHRUN

# Prints version and place of a torch that can be used, and fails where there is none.
define HAS_TORCH
import importlib.metadata as m, pathlib, re
version = m.version("torch")
found, oldest = (tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (version, "$(OLDEST)"))
assert found $(ACCEPTED) oldest
print(version, "in", pathlib.Path(m.distribution("torch").locate_file("")).resolve())
endef
export HAS_TORCH

define TORCH_COMING
torch is not there yet; downloading $(TORCH). On Linux that is the build with CUDA, several gigabytes.
For a CPU-only build (200 MB): install that version as https://pytorch.org/get-started says, into any Python,
and name that Python: make PYTHON=/path/to/python. Stop now with Ctrl-C if that is what you want.
endef
export TORCH_COMING
