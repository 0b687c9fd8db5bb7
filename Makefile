# Two commands do all: `make demo` and `make test`.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DO_NOT_TRACK := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := 1
export MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK := true

.PHONY: demo test check setup format pipeline constraints clean

demo: setup  ## set up, run the main job on the embedded default, show the result
	$(BIN)/tvmflow run digits
	$(BIN)/tvmflow report

test: check  ## all checks and tests, as CI runs them
	$(BIN)/python -m pytest tests

check: setup  ## style, types, direction of imports, documentation against the disk
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/contract

setup: $(VENV)/.installed
	@$(BIN)/tvmflow init --quiet

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11, or make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

format:
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

pipeline:  ## write dvc.yaml anew from the table of stages
	$(BIN)/python -m flows.pipeline > dvc.yaml.new && mv dvc.yaml.new dvc.yaml

constraints:  ## freeze what is installed
	@grep '^#' constraints.txt > constraints.new
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v ' @ ' | sort -f >> constraints.new
	mv constraints.new constraints.txt

clean:  ## remove what a run makes; the DVC cache and MLflow's history stay
	rm -rf artifacts report.html .pytest_cache .mypy_cache .ruff_cache
