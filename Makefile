# Every target sets up what it needs: Python 3.11, make and the package registries are enough.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# An interpreter that is named (make test PYTHON=python3.13) has an environment of its own.
VENV := .venv$(if $(filter command line,$(origin PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
SERVE := $(VENV)/.installed-serve
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
RELEASE := $(VENV)/.installed-release
CLIENTS := .cache/clients
SUITES := .cache/suites
WORKERS ?= 3
FRONT_ENDS ?= 1
SHARDS ?= 1
ARGS ?=
UPGRADE ?= --upgrade
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
CHAOS := PYTHONPATH=tests $(BIN)/python -m chaos.run

# Python keeps what it compiled: otherwise each process that a test starts compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --strip-extras pyproject.toml

.PHONY: help serve fleet test test-all proof wire-postgresql soak chaos azurite check format bench instructions clients suites docs docs-links release lock clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVE) ## Serve blobs, queues and tables on 127.0.0.1:10000 to 10002 (ARGS="--in-memory" passes flags on)
	@$(BIN)/partita serve $(ARGS)

fleet: $(DEV) ## Run a fleet here: a catalog, two shards, two front ends (ARGS="--shards 4" passes on)
	@$(BIN)/partita fleet up $(ARGS)

test: $(DEV) ## Run the tests that every change runs (ARGS="-k merge" passes on)
	$(PYTEST) -m "not soak and not proof" $(ARGS)

proof: $(DEV) ## Run the slower proofs: crash loops, process chaos, long models (ARGS="-k kill" passes on)
	PARTITA_PROOF=1 $(PYTEST) -m "(proof or repeated) and not soak" $(ARGS)

test-all: $(DEV) ## Run the core of the tests on every Python from 3.11 on that this machine has
	$(BIN)/python tools/test_all.py

wire-postgresql: $(DEV) ## Run the wire tests on PostgreSQL (FRONT_ENDS=2: two servers; SHARDS=3: while ranges move; POOLER=pgbouncer)
	PARTITA_TEST_STORE=postgresql PARTITA_TEST_FRONT_ENDS=$(FRONT_ENDS) \
		PARTITA_TEST_SHARDS=$(SHARDS) PARTITA_TEST_POOLER=$(POOLER) $(PYTEST) \
		-m "not soak" tests/wire $(ARGS)

soak: $(DEV) ## Run every test with its full counts, then chaos for two hours (not with ARGS)
	PARTITA_SOAK=1 $(PYTEST) $(ARGS)
	$(if $(ARGS),,$(CHAOS) --for 7200)

chaos: $(DEV) ## Inject faults into running systems (SECONDS=7200 repeats it; ARGS="--only states")
	$(CHAOS) $(if $(SECONDS),--for $(SECONDS)) $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m chaos.bad_inputs

azurite: $(DEV) ## Run the tests of the typed layer against Azurite (ARGS="-k large" passes on)
	PYTHONPATH=tests $(PYTEST) -p azurite.plugin tests/azurite tests/patterns \
		tests/guide/test_patterns_*.py $(ARGS)

check: $(DEV) ## Check generated code, format, lint, types (also of the console) and import rules
	$(BIN)/python tools/make_sync.py --check
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_console.py

format: $(DEV) ## Format the code and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(DEV) ## Measure Partita beside its peers (needs wrk; ARGS="--quick")
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/tables/run.py $(ARGS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/tables/growth.py --quick
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/tables/soak.py --seconds 60
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/scaleout/run.py $(filter --quick --demand,$(ARGS))
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/queues/run.py $(filter --quick --demand,$(ARGS))
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/blobs/run.py $(filter --quick --demand,$(ARGS))
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python bench/bulk/run.py $(filter --quick --demand,$(ARGS))
	$(BIN)/python bench/reliable/run.py $(filter --quick --demand,$(ARGS))
	$(BIN)/python bench/reliable/replicated.py $(filter --quick --demand,$(ARGS))
	$(BIN)/python bench/shards/run.py $(filter --quick --demand,$(ARGS))
	$(BIN)/python bench/patterns/run.py $(filter --quick --demand,$(ARGS))
	$(BIN)/python bench/patterns/worker.py $(filter --quick --demand,$(ARGS))

instructions: $(DEV) ## Count instructions per request (needs valgrind; BASE=main compares; ARGS="--only W1,W2")
	$(BIN)/python bench/service/instructions.py $(if $(BASE),--base $(BASE)) $(ARGS)

clients: $(DEV) $(CLIENTS)/.installed ## Run clients of others against a server (ARGS="-k celery" passes on)
	PARTITA_CLIENTS=$(abspath $(CLIENTS)) $(PYTEST) tests/clients $(ARGS)

suites: $(DEV) $(SUITES)/.installed ## Run the tests of the Azure SDKs themselves, over https (ARGS="blobs -k lease" passes on)
	$(BIN)/python tests/clients/suites/run.py $(ARGS)

docs: $(DOCS) ## Build the site from docs and code into site/; warnings and broken links fail
	$(BIN)/python tools/draw_diagrams.py --check
	$(BIN)/sphinx-build -q -W --keep-going -E -j auto -c docs/sphinx -d .cache/doctrees . site
	@echo "Open site/index.html"

docs-links: $(DOCS) ## Ask every address outside of the project whether it is there
	$(BIN)/sphinx-build -q -b linkcheck -j auto -c docs/sphinx -d .cache/doctrees . .cache/links

release: $(DEV) $(RELEASE) ## Build and check wheel and sdist (VERSION=0.2.0 writes the version and the changelog section)
	$(BIN)/python tools/release.py $(if $(VERSION),--version $(VERSION) --date $$(date -u +%F))

lock: $(DEV) ## Renew requirements/*.txt within the ranges of pyproject.toml (UPGRADE= keeps versions that fit)
	$(LOCK) $(UPGRADE) --extra dev requirements/build.in --output-file requirements/dev.txt
	$(LOCK) --constraints requirements/dev.txt --extra azure --extra oauth requirements/build.in \
		--output-file requirements/serve.txt
	$(LOCK) --constraints requirements/dev.txt --extra azure --extra oauth --extra scaleout \
		requirements/build.in --output-file requirements/scaleout.txt
	$(LOCK) $(UPGRADE) --constraints requirements/dev.txt --extra docs requirements/build.in \
		--output-file requirements/docs.txt
	$(LOCK) $(UPGRADE) --constraints requirements/dev.txt --extra release requirements/build.in \
		--output-file requirements/release.txt
	$(LOCK) $(UPGRADE) --extra azure --extra shards requirements/clients.in requirements/build.in \
		--output-file requirements/clients.txt
	$(LOCK) $(UPGRADE) --extra azure --extra oauth requirements/suites.in \
		--output-file requirements/suites.txt

clean: ## Remove everything that these targets made, but no data
	rm -rf .venv .venv-* tests/wire/js/node_modules tests/console/js/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache build dist site .cache

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(SERVE): $(VENV)/pyvenv.cfg requirements/serve.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/serve.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): $(VENV)/pyvenv.cfg requirements/dev.txt requirements/serve.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(SERVE) $@

$(CLIENTS)/.installed: requirements/clients.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(subst $(BIN),$(CLIENTS)/bin,$(INSTALL)) --require-hashes -r requirements/clients.txt
	$(subst $(BIN),$(CLIENTS)/bin,$(INSTALL)) --no-deps --no-build-isolation .
	@touch $@

$(SUITES)/.installed: requirements/suites.txt
	$(PYTHON) -m venv $(SUITES)
	$(subst $(BIN),$(SUITES)/bin,$(INSTALL)) --require-hashes -r requirements/suites.txt
	@touch $@

$(RELEASE): $(VENV)/pyvenv.cfg requirements/release.txt
	$(INSTALL) --require-hashes -r requirements/release.txt
	@touch $@

$(DOCS): $(VENV)/pyvenv.cfg requirements/docs.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/docs.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@
