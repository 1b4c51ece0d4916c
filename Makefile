# Everything a fresh clone needs: Python 3.11 or newer, a package index, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 8000
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

export ISOSIM_PORT ?= $(PORT)

.DEFAULT_GOAL := help
DATA ?= ../shared/data

.PHONY: help run test check format redis shipped clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: .venv/run model_store/encoders/minilm  ## environment, default encoder, server on http://127.0.0.1:8000 (PORT=)
	@exec $(BIN)/isosim serve

test: check redis  ## everything the tests need (a real Redis included), all checks, all tests
	$(BIN)/python -m pytest

check: .venv/dev  ## ruff, mypy (strict), import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/dev  ## let ruff lay the code out
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

redis:
	@command -v redis-server >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "The tests run a real redis-server. Install it (Debian, Ubuntu: sudo apt-get install redis-server) and run again."; exit 1; }; \
	  echo "installing redis-server"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null; }

model_store/encoders/minilm: | .venv/run
	@echo "exporting the default encoder, once (about a minute)"
	@$(BIN)/isosim export --encoder minilm --model-store model_store

.venv/bin/python:
	@echo "making the environment in .venv"
	@$(PYTHON) -m venv .venv

.venv/run: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing packages, torch for the export among them (a few minutes)"
	@$(PIP) "torch==2.13.0"
	@$(PIP) --editable ".[cpu,train]"
	@touch $@

.venv/dev: .venv/run
	@echo "installing the test tools"
	@$(PIP) --editable ".[cpu,train,dev]"
	@touch $@

shipped: .venv/run model_store/encoders/minilm  ## make the shipped default calibration anew (DATA=folder with text/wikipedia-en.txt)
	@store=$$(mktemp -d) && cp -r model_store/encoders $$store/ && \
	$(BIN)/isosim calibrate $(DATA)/text/wikipedia-en.txt --domain default --promote always --model-store $$store && \
	for digest in $$store/encoders/minilm/*/; do \
	  rm -rf service/modelling/shipped && mkdir -p service/modelling/shipped && \
	  cp -r $$store/domains/default/1 service/modelling/shipped/$$(basename $$digest); done; rm -rf $$store

clean:  ## forget environment and exported encoders, keep domains
	rm -rf .venv model_store/encoders
