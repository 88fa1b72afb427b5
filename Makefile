# What a person types. `make demo` needs Python 3.12, git and make; everything else is installed into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Without bytecode every Airflow process compiles everything again: minutes instead of seconds to start.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME VIRTUAL_ENV
export PYTHONPATH := $(CURDIR)/include:$(CURDIR)/plugins

python := .venv/bin/python

.PHONY: help setup setup-dev demo start stop status test lint format bench lock clean screenshot

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: .venv/installed ## Install everything that Airflow and the pipeline need into .venv
	@true

setup-dev: .venv/installed-dev ## The same, and what tests and checks need
	@true

.venv/installed: requirements.txt scripts/setup.sh scripts/find_python.sh
	@scripts/setup.sh requirements.txt
	@touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	@scripts/setup.sh requirements.txt requirements-dev.txt
	@touch $@

demo: setup ## Fine-tune a real model on this machine, through Airflow, and show what came out
	@exec $(python) -m finetune.demo demo

start: setup ## Start Airflow on this machine
	@exec $(python) -m finetune.demo start

stop: ## Stop the Airflow that make demo or make start left up, all of it
	@if [ ! -x $(python) ]; then echo "Nothing to stop: nothing was set up here."; exit 0; fi; \
	exec $(python) -m finetune.demo stop

status: setup ## Say whether Airflow runs, where, and how to log in
	@exec $(python) -m finetune.demo status

test: setup-dev ## Run every test
	@exec $(python) -m pytest $(PYTEST_ARGS)

lint: setup-dev ## Check style and types
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy --strict include plugins

format: setup-dev ## Put every file into the house style
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

screenshot: setup-dev ## Take a picture of the newest run for the README (needs chromium)
	@exec $(python) scripts/screenshot.py

bench: setup-dev ## Print the numbers that are promised, measured here
	@code=0; for one in benchmarks/*.py; do echo "== $$one"; $(python) "$$one" || code=1; done; exit $$code

lock: setup ## Write requirements.txt and requirements-dev.txt anew from pyproject.toml
	@scripts/lock.sh

clean: stop ## Remove .venv and caches (the store under .finetune stays)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
