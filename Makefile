# `make demo` and `make test` need nothing but a Python >= 3.12 with a shared libpython; they install and build the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
export JOBS
# A clone in another folder shares this one's compile cache.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

REPORTS := $(CURDIR)/build/reports
CTEST := ctest --output-on-failure --no-tests=error
PYTEST := .venv/bin/python -m pytest

.PHONY: help build venv demo test unit cluster-test bench conformance lint format asan tsan fuzz clean

help:
	@echo "make build        .venv/bin/parkway and .venv/bin/python with jax and parkway in it"
	@echo "make demo         start a cluster, train a small transformer on it, compare with local JAX"
	@echo "make test         every test; make unit: the C++ unit tests alone"
	@echo "make bench        the figures, as a table and as JSON"
	@echo "make conformance JAX_TESTS=DIR    JAX's own tests (DIR: the tests/ folder of a JAX checkout; CONFORMANCE_FLAGS=--local, --shape=1x2x4)"
	@echo "make lint         clang-format, clang-tidy, ruff; make format: applies what they can apply"
	@echo "make asan, make tsan              unit tests under sanitizers"
	@echo "make fuzz [FUZZ_SECONDS=300]      the fuzzers, for so long in all"
	@echo "make clean        removes build, build-asan, build-tsan, build-fuzz and .venv"

venv:
	@scripts/setup.sh --no-build

build:
	@scripts/setup.sh

demo: build
	@.venv/bin/python scripts/demo.py

unit: build
	@mkdir -p $(REPORTS)/gtest
	GTEST_OUTPUT=xml:$(REPORTS)/gtest/ $(CTEST) --test-dir build -L unit -j $(JOBS) --output-junit $(REPORTS)/unit.xml

test: build unit
	@status=0; \
	GTEST_OUTPUT=xml:$(REPORTS)/gtest/ ctest --output-on-failure --test-dir build -LE unit --output-junit $(REPORTS)/process.xml || status=1; \
	$(PYTEST) tests --junitxml $(REPORTS)/pytest.xml || status=1; \
	exit $$status

bench: build
	@.venv/bin/python bench/run.py

conformance: build
	@[ -n "$(JAX_TESTS)" ] || { echo "make conformance JAX_TESTS=DIR: DIR is the tests/ folder of a JAX checkout" >&2; exit 2; }
	@.venv/bin/python tests/conformance/run.py --jax-tests "$(JAX_TESTS)" $(CONFORMANCE_FLAGS)

lint: venv
	@scripts/lint.sh

format: venv
	@git ls-files '*.h' '*.cc' | xargs -r clang-format-16 -i
	@.venv/bin/ruff check --fix --quiet . && .venv/bin/ruff format --quiet .

asan: venv
	@scripts/sanitize.sh address build-asan

tsan: venv
	@scripts/sanitize.sh thread build-tsan

FUZZ_SECONDS ?= 300
fuzz: venv
	@scripts/fuzz.sh $(FUZZ_SECONDS) build-fuzz

clean:
	rm -rf build build-asan build-tsan build-fuzz .venv
