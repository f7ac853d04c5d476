# Every target sets up what it needs: Python 3.11, make and the package registries are enough.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SERVE := .venv/.installed-serve
DEV := .venv/.installed-dev
WORKERS ?= 3
FRONT_ENDS ?= 1
ARGS ?=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
CHAOS := PYTHONPATH=tests $(BIN)/python -m chaos.run

# Python keeps what it compiled: otherwise each process that a test starts compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
LOCK := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras \
	--build-deps-for editable

.PHONY: help serve test proof wire-postgresql soak chaos azurite check format bench instructions lock clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVE) ## Serve blobs, queues and tables on 127.0.0.1:10000 to 10002 (ARGS="--in-memory" passes flags on)
	@$(BIN)/partita serve $(ARGS)

test: $(DEV) ## Run the tests that every change runs (ARGS="-k merge" passes on)
	$(PYTEST) -m "not soak and not proof" $(ARGS)

proof: $(DEV) ## Run the slower proofs: crash loops, process chaos, long models (ARGS="-k kill" passes on)
	PARTITA_PROOF=1 $(PYTEST) -m "(proof or repeated) and not soak" $(ARGS)

wire-postgresql: $(DEV) ## Run the wire tests on PostgreSQL (FRONT_ENDS=2: two servers; POOLER=pgbouncer; ARGS="-k merge" passes on)
	PARTITA_TEST_STORE=postgresql PARTITA_TEST_FRONT_ENDS=$(FRONT_ENDS) \
		PARTITA_TEST_POOLER=$(POOLER) $(PYTEST) \
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

instructions: $(DEV) ## Count instructions per request (needs valgrind; BASE=main compares; ARGS="--only W1,W2")
	$(BIN)/python bench/service/instructions.py $(if $(BASE),--base $(BASE)) $(ARGS)

lock: $(DEV) ## Renew requirements/*.txt within the ranges of pyproject.toml
	$(LOCK) --upgrade --extra dev --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --upgrade --extra azure --constraint requirements/dev.txt \
		--output-file requirements/serve.txt pyproject.toml
	$(LOCK) --upgrade --extra azure --extra scaleout --constraint requirements/dev.txt \
		--output-file requirements/scaleout.txt pyproject.toml

clean: ## Remove everything that these targets made, but no data
	rm -rf .venv tests/wire/js/node_modules tests/console/js/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache build dist

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv

$(SERVE): .venv/pyvenv.cfg requirements/serve.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/serve.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): .venv/pyvenv.cfg requirements/dev.txt requirements/serve.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $(SERVE) $@
