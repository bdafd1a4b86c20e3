# Wakala: `make help` lists what there is. Needs only make and Python 3.13.
PYTHON ?= python3.13
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PINS   := --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
          --python-version 3.13 --custom-compile-command "make pins"

.DEFAULT_GOAL := help
.PHONY: help run stop test check lint types soak chaos guards bench scale openapi invoke pins clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

run: $(READY) ## From a fresh clone to the finished demo; leaves the stack up
	@$(BIN)/wakala up
	@$(BIN)/wakala demo

stop: ## End what `make run` started
	@if [ -x $(BIN)/wakala ]; then $(BIN)/wakala down; else echo "Nothing is running."; fi

test: lint types ## The whole suite: style, types and every test
	$(BIN)/pytest

chaos: $(READY) ## Days in a storm of faults, one after the other (MINUTES=…, SEED=…)
	PYTHONPATH=services:sdk $(BIN)/python -m tests.e2e.chaos --minutes $(or $(MINUTES),10) \
	  $(if $(SEED),--seed $(SEED))

check: lint types ## The quick part of it: style, types, unit and shape tests
	$(BIN)/pytest tests/unit tests/shape

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 sdk

soak: $(READY) ## Play histories of the simulator (SEEDS=1..5000, or how many; SEED=77: that one)
	PYTHONPATH=.:services $(BIN)/python -m tests.simulation.histories.soak \
	  $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),500)) \
	  $(if $(STEPS),--steps $(STEPS))

bench: $(READY) ## The article's algorithm, a naive one and ours under one load (NUMBER=… ROUNDS=… JSON=…)
	@PYTHONPATH=.:services $(BIN)/python -m bench $(if $(NUMBER),--number=$(NUMBER)) \
	  $(if $(ROUNDS),--rounds=$(ROUNDS)) $(if $(SEED),--seed=$(SEED)) $(if $(JSON),--json=$(JSON)) \
	  $(if $(AMAZONS),--dynamodb-local)

scale: $(READY) ## Where the first bottleneck is, on paper and simulated (MEASURE=1: time the steps anew)
	PYTHONPATH=.:services $(BIN)/python -m bench.queueing $(if $(MEASURE),--measure)

openapi: $(READY) ## Write docs/openapi.yaml anew from the code that it describes
	PYTHONPATH=services $(BIN)/python -m tests.openapi

guards: $(READY) ## Break each guard in turn that docs/proof-guards.md does not tell of (ALL=1: each)
	PYTHONPATH=services $(BIN)/python -m tests.simulation.guards.find $(if $(ALL),--all)

# The function runs in Docker on Lambda's own image, for this machine's processor. The exit status
# is 0 even when it raised: read the answer.
CPU := $(shell uname -m)
invoke: $(READY) ## Run one function on one event by `sam local invoke` (FN=… EVENT=…, needs Docker)
	@test -n "$(FN)" -a -n "$(EVENT)" || \
	  { echo "usage: make invoke FN=IngestFunction EVENT=ingest/post.json"; exit 1; }
	@test -f events/$(EVENT) || { echo "events/$(EVENT): no such event"; exit 1; }
	@docker info >/dev/null 2>&1 || { echo "make invoke needs a running Docker"; exit 1; }
	@mkdir -p .wakala && LAYER_ARCH=$(CPU:arm64=aarch64) $(BIN)/sam build --build-dir .wakala/docker-build \
	  --parameter-overrides Architecture=$(CPU:aarch64=arm64) >.wakala/docker-build.log 2>&1 || \
	  { cat .wakala/docker-build.log; exit 1; }
	$(BIN)/python -m wakala.bridge $(BIN)/sam local invoke $(FN) --template .wakala/docker-build/template.yaml \
	  --parameter-overrides Architecture=$(CPU:aarch64=arm64) --skip-pull-image \
	  --add-host host.docker.internal:host-gateway \
	  --event events/$(EVENT) --env-vars events/env.json

pins: $(READY) ## Resolve requirements/*.in again and write their pins
	$(BIN)/uv pip compile $(PINS) requirements/engine.in -o requirements/engine.txt
	$(BIN)/uv pip compile $(PINS) requirements/runtime.in -o requirements/runtime.txt
	$(BIN)/uv pip compile $(PINS) pyproject.toml requirements/dev.in -o requirements/dev.txt
	cd shared && ../$(BIN)/uv pip compile $(PINS) --constraint ../requirements/dev.txt \
	  $(addprefix --no-emit-package ,botocore urllib3 python-dateutil six) \
	  requirements.in -o requirements.txt

clean: stop ## End what runs; remove environments, build output and caches
	rm -rf .wakala $(VENV) .aws-sam .mypy_cache .pytest_cache .ruff_cache .hypothesis

# One virtual environment with everything, made again when a pin changes.
$(READY): requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' \
	  2>/dev/null || { echo "Wakala needs Python 3.13: no working $(PYTHON) found (set PYTHON=…)"; exit 1; }
	@echo "Making the virtual environment $(VENV): about a minute, once"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation --editable .
	@touch $@
