# Two commands do all: `make demo` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
OLD_TVM := .venv-tvm-0.26
PYTEST = TVMFLOW_OLD_TVM=$(CURDIR)/$(OLD_TVM)/bin/python TVMFLOW_PICTURES=$(CURDIR)/.pictures \
	$(BIN)/python -m pytest tests -n 2 --dist worksteal
FAST := cli config contract evaluation frontends golden ir passes pipeline quantization report sandbox setup sources \
	support targets toolchain tracking tuning vta
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DO_NOT_TRACK := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := 1
export MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK := true

.PHONY: setup-demo demo test test-all test-fast check style browser jdk postgresql setup format pipeline docs schema constraints clean image agents

demo: setup-demo  ## install what the demo needs, run the main job on the embedded default, show the result
	$(BIN)/tvmflow run digits
	$(BIN)/tvmflow report

agents: setup  ## the wheel tvmflow-agent in dist/: agents for boards and phones, by zig
	$(BIN)/python -m tvmflow.devices.agent_wheel dist

test: style browser jdk  ## all checks, and the tests that together execute nearly all that any test does; CI runs this
	$(PYTEST) -m "not slow"

test-all: style browser jdk postgresql $(OLD_TVM)/.installed  ## all tests and more random cases; one test re-tunes from TVM 0.26.0
	HYPOTHESIS_PROFILE=default $(PYTEST)

test-fast: setup  ## what starts no servers, sandboxes or stages: under two minutes
	$(BIN)/python -m pytest $(FAST:%=tests/%) -m "not slow and not heavy" -n 2 --dist worksteal

browser:  ## Chromium, in which the report is tested; without it, and without root to install it, those tests are skipped
	@which chromium chromium-browser google-chrome 2> /dev/null | grep -q . || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; } \
		|| echo "no Chromium and no way to install it: the tests of the report in a browser are skipped"

jdk:  ## the compilers of Java and Kotlin that the example apps need; without them, and without root to install them, their tests are skipped
	@{ which javac && which kotlinc && test -e /usr/share/java/kotlinx-coroutines-core.jar; } > /dev/null 2>&1 || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jdk-headless \
		kotlin libkotlinx-coroutines-java libkotlinx-atomicfu-java > /dev/null; } \
		|| echo "no JDK or Kotlin and no way to install them: the tests of the apps in Java and Kotlin are skipped"

postgresql:  ## the database of a team's servers in test-all; without it, and without root to install it, its tests are skipped
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql > /dev/null; } \
		|| echo "no PostgreSQL and no way to install it: the tests of servers on it are skipped"

check: style  ## the same, and documentation against the disk
	$(BIN)/python -m pytest tests/contract

style: setup  ## style, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/.installed  ## everything: all frameworks, what tests need
	@$(BIN)/tvmflow init --quiet

setup-demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.installed-demo)
	@$(BIN)/tvmflow init --quiet

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Python 3.11 or later is needed: install it, or make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@# both have the same files, so the one that was there before has to go first
	@if $(BIN)/python -m pip show --quiet xgboost 2> /dev/null; then $(BIN)/python -m pip uninstall --quiet --yes xgboost; fi
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

# Bytecode is written by what is used: compiling all of it takes longer than the demo and a fifth of the disk.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[demo]"
	@touch $@

$(OLD_TVM)/.installed: $(VENV)/.installed
	test -x $(OLD_TVM)/bin/python || $(PYTHON) -m venv $(OLD_TVM)
	$(OLD_TVM)/bin/python -m pip install --quiet --no-deps apache-tvm==0.26.0
	@# everything but TVM is shared with the main environment
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> $$($(OLD_TVM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
	@touch $@

format:
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

pipeline:  ## write dvc.yaml anew from the table of stages
	$(BIN)/python -m flows.pipeline > dvc.yaml.new && mv dvc.yaml.new dvc.yaml

image:  ## the image of the Dockerfile, for containers and for workers of Docker and Kubernetes; EXTRAS=onnx makes a smaller one
	docker build --tag tvmflow $(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) .

docs: setup  ## build the documentation site into site/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

schema:  ## write the JSON schema of params.yaml anew
	$(BIN)/tvmflow schema > params.schema.json.new && mv params.schema.json.new params.schema.json

constraints:  ## freeze what is installed
	@grep '^#' constraints.txt > constraints.new
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v ' @ ' | sort -f >> constraints.new
	mv constraints.new constraints.txt

clean:  ## remove what a run makes; the DVC cache and MLflow's history stay
	rm -rf artifacts report.html .pictures .pytest_cache .mypy_cache .ruff_cache
