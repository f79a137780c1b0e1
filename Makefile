# make book [PROFILE=smoke|pocket|paper] [PDF=required] [SCHEDULER=ADDRESS] · make test · make env · make lint
# make rehearse · make publish · make serve · make look · make devices · make bench
SHELL := bash
# Where it is set, every process compiles every module anew: some ten seconds for each chapter and for each build.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --jobs=2 --no-print-directory
PROFILE ?= pocket
PDF ?= wanted
SCHEDULER ?=
STEP ?= all
PYTEST ?=
run := .venv/bin/python

.PHONY: book executed rehearse look test devices env latex lint bench lock publish serve clean

book: env latex
	@$(run) -m ci.build --profile $(PROFILE) --pdf $(PDF) --step $(STEP) --scheduler "$(SCHEDULER)"

# The first half of a build, for a machine without LaTeX; the other half is STEP=render.
executed: env
	@$(run) -m ci.build --profile $(PROFILE) --step execute --scheduler "$(SCHEDULER)"

# Everything that the workflow of the profile paper does, with pocket models behind the names of the public ones.
rehearse: env latex
	@$(run) -m ci.rehearse

# Open every page in headless Chromium.
look: env
	@$(run) -m ci.browse

test: env latex
	@$(run) -m pytest -n 2 --dist loadgroup $(PYTEST)

# What may run on a GPU, against the same on the CPU; nothing is compared where there is none.
devices: env
	@$(run) -m pytest tests/test_devices.py

env: .venv/.stamp

.venv/.stamp: requirements.lock pyproject.toml
	@ci/make-env.sh

latex:
	@ci/install-latex.sh

lint: env
	@$(run) -m ruff check .
	@$(run) -m ruff format --check .

bench: env
	@$(run) -m benchmarks

# Resolve the dependencies of pyproject.toml anew.
lock: env
	@$(run) -m ci.lock

# Add the book to the versions in site/; a commit and a PDF are asked for.
publish: PDF := required
publish: book
	@$(run) -m ci.publish

serve:
	@$(run) -m http.server --bind 127.0.0.1 --directory $(if $(wildcard site),site,_build/html) 8000

clean:
	rm -rf _build
