# Everything here sets itself up in .venv from pinned versions; all it takes is Python 3.11, make and
# (for Spark) Java 17 or 21. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Without bytecode on disk each worker and each of the brokers that the tests start compiles every
# module anew: a fifth of the CPU of `make check`.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.docs-installed
PYTEST := $(BIN)/python -m pytest
# Test files go to two processes more than there are processors, for half of the time is spent waiting
# (for a JVM, a disk, a timer); to four at most, since Spark and Kafka's tools need a gigabyte each.
# WORKERS=0 runs everything in one process.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2) + 2 )))
# Files go out in the order of collection, the long ones first (tests/conftest.py).
PARALLEL := -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# A session of Spark in each worker: the files of one session would take longer than all others together.
PARALLEL_SPARK := -n $(WORKERS) --maxprocesses 3 --dist loadscope --no-loadscope-reorder
# Rooms whose tests open no socket and start no broker.
PURE := tests/protocol tests/settings tests/metadata tests/controller tests/quorum \
    tests/coordinator tests/replication tests/share
CONFIG ?= config/server.properties
# The Python of .venv, when it is made: by default the first from 3.11 on that is on the PATH. One built
# with profile-guided optimisation, as a distribution's is, took 0.73 of the CPU in a simulation of what one
# built without took, as pyenv's is unless it is told.
PYTHON ?= python3.11 python3.12 python3.13 python3.14 python3

.PHONY: help
help:  ## this list
	@echo "kbroker, a Kafka-compatible broker. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

$(STAMP): requirements/broker.txt requirements/dev.txt pyproject.toml
	@python=; \
	for candidate in $(PYTHON); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	            > /dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "make: kbroker needs Python 3.11 or newer with venv, which none of these is: $(PYTHON)" >&2; \
	    exit 1; \
	fi; \
	echo "setting up .venv with $$("$$python" --version), a few minutes the first time"; \
	"$$python" -m venv --clear .venv; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $@

.PHONY: venv
venv: $(STAMP)  ## set up .venv only

.PHONY: serve
serve: $(STAMP)  ## start a broker on localhost:9092, data in ./data (CONFIG=path for another file)
	@exec $(BIN)/kbroker serve $(CONFIG)

.PHONY: demo
demo: $(STAMP)  ## broker, 10,000 events, a consumer group, Spark to Parquet, and a check of every row
	@$(BIN)/python scripts/demo.py

# The tests of kcat need it installed; where this machine lets us, it is.
.PHONY: kcat
kcat:
	@command -v kcat > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	    && echo "installing kcat" && apt-get update -qq > /dev/null 2>&1 \
	    && apt-get install -y -qq kcat > /dev/null 2>&1; } \
	    || echo "kcat is not installed: its tests are left out (Debian: apt-get install kcat)"

# Fetched before the tests, whose time limits are not made for that.
.PHONY: jars
jars: $(STAMP)
	@if command -v java > /dev/null; then for part in "" --streams --broker --shell; do \
	    $(BIN)/python scripts/kafka_jars.py $$part > /dev/null || true; done; \
	    $(BIN)/python scripts/spark_jars.py || true; fi

# The first worker that imports a test file compiles it with pytest's own assert; on a clone that has
# run no tests all of them would, each for itself, half a minute long. Done beside mypy it takes no
# time.
COLLECTED := .cache/.collected
$(COLLECTED): $(STAMP)
	@$(PYTEST) -q --collect-only tests > /dev/null
	@mkdir -p $(@D) && touch $@

.PHONY: ready
ready: lint kcat jars $(COLLECTED)

.PHONY: test
test: $(STAMP)  ## lint, types, import rules and all tests but the slow ones and long ones of Spark (10 minutes on two cores)
	@$(MAKE) --no-print-directory -j2 ready
	@$(BIN)/python -c 'from spark_jobs.java import java_problem as p; \
	    print("spark tests are left out: " + p()) if p() else None'
	@$(PYTEST) -q $(PARALLEL) -m "not slow and not reference and not long_spark"

.PHONY: check
check: $(STAMP)  ## lint, types, import rules and the tests of the pure rooms (under a minute)
	@$(MAKE) --no-print-directory -j2 lint pure-tests

.PHONY: pure-tests
pure-tests: $(STAMP)
	@$(PYTEST) -q -n auto --maxprocesses 4 -m "not slow and not reference and not clients" \
	    $(wildcard $(PURE))

.PHONY: test-slow
test-slow: $(STAMP)  ## the slow tests too: kill -9 runs, long fuzzing, many seeds, comparison with Apache Kafka (three hours)
	@export HYPOTHESIS_PROFILE=thorough; \
	    $(PYTEST) -q $(PARALLEL) -m "(slow or reference) and not serial and not soak"; failed=$$?; \
	    [ $$failed -le 1 ] || exit $$failed; \
	    $(PYTEST) -q -m "slow and serial" && exit $$failed

.PHONY: spark-ready
spark-ready: $(STAMP)
	@if command -v java > /dev/null; then \
	    $(BIN)/python scripts/spark_jars.py --tables && $(BIN)/python scripts/spark_classes.py || true; fi

.PHONY: test-spark
test-spark: $(STAMP) spark-ready  ## the Spark pack but for kills, slow tests and Apache Kafka (Java 17 or 21; six minutes)
	@$(PYTEST) -q $(PARALLEL_SPARK) tests/spark -m "not slow and not reference and not spark_kills"

.PHONY: test-spark-kafka
test-spark-kafka: $(STAMP) jars spark-ready  ## the same tests with Apache Kafka 4.3.1 as the broker
	@KBROKER_TEST_BROKER=kafka $(PYTEST) -q $(PARALLEL_SPARK) tests/spark \
	    -m "spark and not slow and not spark_kills"

.PHONY: test-spark-kills
test-spark-kills: $(STAMP) spark-ready  ## twenty rounds of kills for each job of the Spark pack (an hour)
	@$(PYTEST) -q tests/spark -m "spark_kills"

.PHONY: test-spark-soak
test-spark-soak: $(STAMP) spark-ready  ## the same with 200 rounds (ten hours)
	@$(PYTEST) -q tests/spark -m "soak"

.PHONY: test-cluster
test-cluster: $(STAMP) jars  ## controllers and brokers through 200 rounds of faults (Linux, root; 40 minutes)
	@$(PYTEST) -q tests/cluster

# Those that are not on the PATH are left out. Neither Spark nor other projects' clients are needed.
PYTHONS := python3.11 python3.12 python3.13 python3.14
PYTHON_TOOLS := pytest pytest-timeout pytest-xdist hypothesis packaging prometheus-client crcmod

.PHONY: test-pythons
test-pythons:  ## the tests of the pure rooms, and a broker's start, with each Python from 3.11 to 3.14 that is there
	@for python in $(PYTHONS); do \
	    if ! "$$python" -c 'import venv, ensurepip' > /dev/null 2>&1; then \
	        echo "$$python is not on the PATH"; continue; \
	    fi; \
	    echo "$$python: $$("$$python" --version)"; \
	    bin=.cache/pythons/$$python/bin; \
	    "$$python" -m venv "$${bin%/bin}"; \
	    "$$bin/python" -m pip install --quiet --disable-pip-version-check \
	        -r requirements/broker.txt -c requirements/dev.txt $(PYTHON_TOOLS); \
	    "$$bin/python" -m pytest -q -n auto --maxprocesses 4 \
	        -m "not slow and not reference and not clients" $(wildcard $(PURE)) tests/node/test_run.py; \
	done

.PHONY: lint
lint: $(STAMP)  ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/mypy --strict kbroker spark_jobs
	@$(BIN)/lint-imports --no-cache

$(DOCS_STAMP): requirements/docs.txt $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt
	@touch $@

.PHONY: docs
docs: $(DOCS_STAMP)  ## the documentation as a web site, in site/; a broken link or a page outside the navigation fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

.PHONY: format
format: $(STAMP)  ## let ruff put the code in order
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: bench-log
bench-log: $(STAMP)  ## the log's benchmarks only, in one table beside their bare limits (3 minutes)
	@$(BIN)/python -m benchmarks.log_table

.PHONY: bench
bench: $(STAMP)  ## beside Apache Kafka (fetched; needs Java), then the broker alone: an hour and a half, into docs/plots
	@command -v java > /dev/null || { echo "make bench: Apache Kafka needs Java 17 or 21" >&2; exit 1; }
	@$(BIN)/python benchmarks/start.py --kafka
	@$(BIN)/python benchmarks/side_by_side.py --plots docs/plots
	@$(BIN)/python benchmarks/imports.py
	@$(BIN)/python benchmarks/controllers.py
	@$(BIN)/python benchmarks/replication.py --runs 1
	@$(BIN)/python -m benchmarks.hot_path
	@$(BIN)/python benchmarks/wire_cost.py
	@$(BIN)/python benchmarks/codec.py
	@$(BIN)/python -m benchmarks.log_table

.PHONY: bench-scale
bench-scale: $(STAMP)  ## cost against size, plotted into docs/plots (20 GB of disk, 15 minutes)
	@$(BIN)/python benchmarks/scale.py --plots docs/plots

.PHONY: bench-attack
bench-attack: $(STAMP)  ## the generated attack over every API, as a table into docs/attack.md (an hour)
	@$(BIN)/python -m benchmarks.api_attack --write

.PHONY: bench-micro
bench-micro: $(STAMP)  ## micro-benchmarks by pyperf: codec, append, fetch, heartbeat
	@$(BIN)/python benchmarks/micro.py

.PHONY: clean
clean:  ## remove .venv, caches and what demo and serve wrote
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	    build dist data demo-output site *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
