# A fresh clone needs only Python 3.11 or newer and a package index.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 8000
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

export ISOSIM_PORT ?= $(PORT)

.DEFAULT_GOAL := help
DATA ?= ../shared/data

.PHONY: help run test quick test-all check docs-check reference format redis browser balancer monitoring faults images sbom audit wheels dist chart version shipped bench bench-peers soak clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/run model_store/encoders/minilm  ## environment, default encoder, server on http://127.0.0.1:8000 (PORT=)
	@exec $(BIN)/isosim serve

# Three tests at a time, since many wait; WORKERS=0: one after the other. One OpenMP thread each, so that the processes do
# not compete.
WORKERS ?= 3
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
test:  ## checks, and beside them the quick tests: units, HTTP, modelling on small encoders, command line (5 minutes)
	@$(MAKE) --no-print-directory --jobs 2 check quick

quick: .venv/dev redis
	$(PYTEST) -m "not (browser or calibration or deploy or encoder or faults or fuzzing or operation or pages or ray or training)"

test-all: check redis browser balancer monitoring faults .venv-clients/ready .venv-deploy/ready  ## checks and all tests: with images, chart, browser, other clients, faults, fuzzing, Ray, training (an hour)
	$(PYTEST)

check: .venv/dev  ## ruff (with its security rules), mypy (strict), import-linter, JavaScript by ESLint's rules, spelling, pins and licences
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file clients/python/pyproject.toml
	$(BIN)/lint-imports --no-logo
	$(BIN)/oxlint --deny-warnings service/isosim/console
	$(BIN)/codespell
	$(BIN)/python -m pytest tests/security/test_dependencies.py
	$(BIN)/python -m pytest --collect-only -qq  # finds test files that cannot be imported

docs-check: .venv/dev redis .venv-clients/ready  ## spelling, links, figures and commands of the documentation, and that reference pages are current (10 minutes)
	$(BIN)/codespell
	$(PYTEST) tests/docs tests/api/test_documentation.py

reference: .venv/run  ## write docs/openapi.json and docs/reference after a change of the contract
	@$(BIN)/python docs/reference/generate.py

format: .venv/dev  ## format the code with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Arguments: a command, its Debian package.
define installed
	@command -v $(1) >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "The tests run a real $(1). Install it (Debian, Ubuntu: sudo apt-get install $(2)) and run again."; exit 1; }; \
	  echo "installing $(2)"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2) >/dev/null; }
endef

redis:
	$(call installed,redis-server,redis-server)
	$(call installed,openssl,openssl)

browser:
	$(call installed,chromium,chromium)

balancer:
	$(call installed,haproxy,haproxy)

monitoring:
	$(call installed,promtool,prometheus)
	$(call installed,prometheus-alertmanager,prometheus-alertmanager)

faults:
	$(call installed,ip,iproute2)

model_store/encoders/minilm: | .venv/run
	@echo "exporting the default encoder, once (about a minute)"
	@$(BIN)/isosim export --encoder minilm --model-store model_store

.venv/bin/python:
	@echo "making the environment in .venv"
	@$(PYTHON) -m venv .venv

.venv/run: pyproject.toml clients/python/pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing packages, torch for the export among them (a few minutes)"
	@$(PIP) "torch==2.13.0"
	@$(PIP) --editable clients/python --editable ".[cpu,train,xlsx]"
	@touch $@

.venv/dev: .venv/run
	@echo "installing the test tools"
	@$(PIP) --editable clients/python --editable ".[cpu,train,dev]"
	@touch $@

# Clients of other projects, in a separate environment, since they pin other versions than the service.
.venv-clients/ready: tests/clients/requirements.txt
	@echo "installing the clients that the tests use"
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: -r $<
	@touch $@

# Helm, Kubernetes' schemas and checkov, in a separate environment too.
.venv-deploy/ready: tests/deploy/requirements.txt
	@echo "installing the tools that the tests of the chart use"
	@$(PYTHON) -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: -r $<
	@touch $@
# IMAGE=registry/name names the images for your registry. PIP_CONF=FILE is the pip.conf of the build. NETWORK=none builds
# without a network.
IMAGE ?= isosim
IMAGES ?= cpu worker
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
images:  ## build the container images isosim:cpu and isosim:worker (IMAGES=gpu, PIP_CONF=, NETWORK=, BUILD_ARGS=)
	@for target in $(IMAGES); do \
	  DOCKER_BUILDKIT=1 docker build --target $$target --tag $(IMAGE):$$target --build-arg REVISION=$(REVISION) \
	    $(if $(PIP_CONF),--secret id=pip$(comma)src=$(PIP_CONF)) $(if $(NETWORK),--network $(NETWORK)) $(BUILD_ARGS) . || exit 1; done
comma := ,

# The bill of materials in each image.
PROCESSOR ?= $(shell docker version --format '{{.Server.Arch}}')
sbom:  ## write the images' bills of materials (CycloneDX) into dist/ (IMAGES=, IMAGE=)
	@mkdir -p dist
	@for target in $(IMAGES); do \
	  docker run --rm --entrypoint cat $(IMAGE):$$target /usr/share/isosim/sbom.cdx.json \
	    > dist/isosim-$$target-$(PROCESSOR).cdx.json || exit 1; done

# The planted package shows that the advisories were really asked: behind a proxy that answers with nothing, no package has any.
.venv-audit/ready:
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: pip-audit==2.10.0
	@touch $@
audit: .venv-audit/ready  ## known vulnerabilities of the packages in constraints.txt (needs the advisories' servers)
	@echo "jinja2==2.4.1" > .venv-audit/planted.txt
	@if .venv-audit/bin/pip-audit --no-deps --disable-pip --requirement .venv-audit/planted.txt >/dev/null 2>&1; then \
	  echo "the advisories do not know an old jinja2: they were not reached"; exit 1; fi
	@.venv-audit/bin/pip-audit --no-deps --disable-pip --requirement constraints.txt

dist: .venv/run  ## build wheels and source distributions of service and client into dist/
	@$(BIN)/python release/dist.py

chart: .venv-deploy/ready  ## package the Helm chart into dist/
	@mkdir -p dist
	@.venv-deploy/bin/python -c "from helm_python import package; print(package('k8s/isosim', destination='dist'))"

version:
	@sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml

wheels:  ## download the images' packages into docker/wheels, for builds without an index (EXTRAS="cpu train gpu")
	@$(PYTHON) docker/wheels.py $(EXTRAS)

shipped: .venv/run model_store/encoders/minilm  ## make the shipped default calibration again (DATA=folder with text/wikipedia-en.txt)
	@store=$$(mktemp -d) && cp -r model_store/encoders $$store/ && \
	$(BIN)/isosim store init --model-store $$store && \
	$(BIN)/isosim calibrate $(DATA)/text/wikipedia-en.txt --domain default --promote always --model-store $$store && \
	for digest in $$store/encoders/minilm/*/; do \
	  rm -rf service/isosim/export/shipped && mkdir -p service/isosim/export/shipped && \
	  cp -r $$store/versions/default/* service/isosim/export/shipped/$$(basename $$digest); done; rm -rf $$store

INT8 := model_store/encoders/minilm-int8
bench: .venv/dev model_store/encoders/minilm $(INT8) redis  ## measure speed against its limits and peers (DATA=, PARTS="throughput cached …")
	@$(BIN)/python -m loadtest.bench $(PARTS) --data $(DATA)

$(INT8): | .venv/run model_store/encoders/minilm
	@echo "exporting the default encoder at int8 (some minutes)"
	@$(BIN)/isosim export --encoder minilm --precision int8 --text $(DATA)/text/wikipedia-en.txt
	@head -5000 $(DATA)/text/wikipedia-en.txt > .venv/sentences.txt
	@$(BIN)/isosim calibrate .venv/sentences.txt --domain default --encoder minilm-int8 --promote always

.venv-load/ready: loadtest/requirements.txt
	@echo "installing locust"
	@$(PYTHON) -m venv .venv-load
	@.venv-load/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: -r $<
	@touch $@

soak: .venv/dev model_store/encoders/minilm redis  ## half an hour of mixed load: does anything grow, leak or slow down? (MINUTES=)
	@$(BIN)/python -m loadtest.bench soak --data $(DATA) --minutes $(or $(MINUTES),30)

PEERS := loadtest/peers/environments
bench-peers: .venv/run model_store/encoders/minilm  ## environments of infinity and sentence-transformers, for `make bench`
	@mkdir -p $(PEERS)
	@for peer in infinity sentence-transformers; do \
	  [ -x $(PEERS)/$$peer/bin/python ] || $(PYTHON) -m venv $(PEERS)/$$peer; \
	  $(PEERS)/$$peer/bin/python -m pip --disable-pip-version-check install --quiet "torch==2.13.0"; \
	  $(PEERS)/$$peer/bin/python -m pip --disable-pip-version-check install --quiet -r loadtest/peers/$$peer.txt; done
	@$(BIN)/python -c "from isosim.export.checkpoints import resolve; print(resolve('minilm').folder)" > $(PEERS)/checkpoint
	@$(PEERS)/infinity/bin/python loadtest/peers/infinity_model.py "$$(cat $(PEERS)/checkpoint)" $(PEERS)/infinity-model

clean:  ## delete the environment and exported encoders, keep domains
	rm -rf .venv model_store/encoders
