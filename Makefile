# make book [PROFILE=smoke|pocket|paper] [PDF=required] [SCHEDULER=ADDRESS] · make test · make env · make lint · make bench · make serve
SHELL := bash
MAKEFLAGS += --jobs=2 --no-print-directory
PROFILE ?= pocket
PDF ?= wanted
SCHEDULER ?=
PYTEST ?=
run := .venv/bin/python

.PHONY: book test env latex lint bench lock serve clean

book: env latex
	@$(run) -m ci.build --profile $(PROFILE) --pdf $(PDF) --scheduler "$(SCHEDULER)"

test: env latex
	@$(run) -m pytest -n 2 --dist loadgroup $(PYTEST)

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

serve:
	@$(run) -m http.server --bind 127.0.0.1 --directory _build/html 8000

clean:
	rm -rf _build
