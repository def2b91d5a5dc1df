# minitrain: `make` lists what there is.
PYTHON ?= python3
RANKS ?= 4
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt
STAMPS := $(VENV)/ready
# Material prints a banner about the future of MkDocs otherwise.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help tour test docs serve notebooks course lab bench claims clean

help:  ## list the targets
	@echo "make TARGET [PYTHON=a python ≥ 3.11] [RANKS=1 to 8]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | column -t -s '|'

tour: $(STAMPS)/package  ## run every demo, train a small GPT, and show all claims in one table (3 minutes)
	@$(BIN)/python -m minitrain.tour --ranks $(RANKS)

test: $(STAMPS)/package $(STAMPS)/dev $(STAMPS)/notebooks $(STAMPS)/site  ## everything that must hold: format, lint, types, tests, notebooks, site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --min-severity error
	@# a file's tests stay on one worker; what takes long begins first (tests/conftest.py)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python tutorials/build.py check
	@echo "all of it holds"

docs: $(STAMPS)/site  ## build the site into site/
	$(BIN)/mkdocs build --strict

serve: $(STAMPS)/site  ## show the site at http://127.0.0.1:8000 and rebuild it as files change
	$(BIN)/mkdocs serve

notebooks: $(STAMPS)/package $(STAMPS)/notebooks  ## execute the notebooks and rewrite them with their outputs
	$(BIN)/python tutorials/build.py execute

course: $(STAMPS)/notebooks  ## write copies of the notebooks without outputs, for a class, into course/
	$(BIN)/python tutorials/build.py course course

lab: $(STAMPS)/package $(STAMPS)/notebooks  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab tutorials

bench: $(STAMPS)/package  ## compare with what a user would pick instead: torch's own, side by side
	$(BIN)/python -m minitrain.benchmarks

claims: $(STAMPS)/package  ## run the tour on 4 ranks and rewrite docs/claims.json and its picture
	@$(BIN)/python -m minitrain.tour --ranks 4 --json docs/claims.json --table docs/images/claims.svg

clean:  ## remove what was built and downloaded
	rm -rf $(VENV) site course runs

# ---------------------------------------------------------------------------------------------------------------------
# Set-up. Exact versions stand in constraints.txt. A torch that PYTHON already has is used as it is.

$(STAMPS)/base: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name another one: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@cp constraints.txt $(VENV)/constraints.txt
	@if found=$$($(PYTHON) -c "$$HAS_TORCH" 2>/dev/null); then \
	  echo "using the torch of $(PYTHON): $$found"; \
	  echo "$$found" | sed 's/.* in //' > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/given.pth; \
	  grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt; \
	fi
	@$(PIP) pip
	@touch $@

$(STAMPS)/package: $(STAMPS)/base pyproject.toml
	@$(BIN)/python -c 'import torch' 2>/dev/null || echo "$$TORCH_COMING"
	@echo "installing minitrain and what it runs on"
	@$(PIP) --build-constraint $(VENV)/constraints.txt --editable .
	@touch $@

$(STAMPS)/dev $(STAMPS)/notebooks $(STAMPS)/site: $(STAMPS)/base pyproject.toml
	@echo "installing the group \"$(@F)\""
	@$(PIP) --group $(@F)
	@touch $@

# Prints version and place of a torch that is new enough, and fails where there is none.
define HAS_TORCH
import importlib.metadata as m, pathlib, re
version = m.version("torch")
assert tuple(map(int, re.findall(r"\d+", version)[:2])) >= (2, 11)
print(version, "in", pathlib.Path(m.distribution("torch").locate_file("")).resolve())
endef
export HAS_TORCH

define TORCH_COMING
torch is not there yet; downloading 2.13.0. On Linux that is the build with CUDA, several gigabytes.
For a CPU-only build (200 MB): install one as https://pytorch.org/get-started says, into any Python,
and name that Python: make PYTHON=/path/to/python. Stop now with Ctrl-C if that is what you want.
endef
export TORCH_COMING
