# One command for each thing one does here; `make help` lists them. Needed: Python 3.11 or newer with venv, Rust with
# cargo, a C compiler; Go and Node.js with npm for the servers of the tests. Everything else is installed in folders of
# this checkout, but for those servers, which all checkouts share.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_DATA ?= .cache/bench
BENCH_ARGS ?=
CPYTHON ?=
FREE_THREADED_TESTS := $(addsuffix .py,$(addprefix tests/test_,pool steps driver selection samples sample_faults loader lifecycle)) \
	$(wildcard tests/test_sample_loader_*.py)
SAMPLES_ARGS ?= $(filter --quick,$(BENCH_ARGS))
PREPARING_ARGS ?= $(filter --quick,$(BENCH_ARGS))

RUST := Cargo.toml Cargo.lock pyproject.toml $(shell find crates -name target -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print)

say = printf '\n== %s\n' "$(1)"
need = command -v $(1) >/dev/null || { echo "make: $(1) was not found; install $(2)" >&2; exit 1; }

# Environments and builds. A stamp says what is done, so that a second call has nothing to do.

define environment # name of the folder, name of the list
$(1)/.installed: requirements/$(2).txt
	@$$(call say,Environment $(1): the packages of requirements/$(2).txt)
	@$$(call need,$$(PYTHON),Python 3.11 or newer or say PYTHON=...)
	@$$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: wanted Python 3.11 or newer, found $$$$($$(PYTHON) -V); say PYTHON=..." >&2; exit 1; }
	@$$(PYTHON) -m venv $(1) || { echo "make: venv failed; on Debian install python3-venv" >&2; exit 1; }
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check -r $$<
	@touch $$@
endef

define build # name of the folder
$(1)/.built: $(1)/.installed $$(RUST)
	@$$(call say,Building headrace (release) into $(1): minutes the first time)
	@$$(call need,cargo,Rust 1.93 or newer)
	@VIRTUAL_ENV=$$(CURDIR)/$(1) $(1)/bin/maturin develop --release --locked
	@touch $$@
endef

# An environment over .venv: what that has in the same version (PyTorch above all) is not installed again.
define overlay # name of the folder, name of the list
$(1)/.installed: .venv/.installed requirements/$(2).txt
	@$$(call say,Environment $(1): the packages of requirements/$(2).txt)
	@$$(PYTHON) -m venv $(1)
	@.venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>$$$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/$(2).txt
	@touch $$@
endef

# CPython without a GIL. PyO3 supports that from 3.14 on, and refuses 3.13, which Debian has the sources of, unless told
# not to look: for tests that will do.
.venv-free-threaded/.installed: requirements/free-threaded.txt tests/tools/free_threaded.py
	@$(call say,Environment .venv-free-threaded: CPython without a GIL and the packages of requirements/free-threaded.txt)
	@$$($(PYTHON) tests/tools/free_threaded.py --install $(CPYTHON)) -m venv .venv-free-threaded
	@.venv-free-threaded/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r $<
	@touch $@

.venv-free-threaded/.built: .venv-free-threaded/.installed .venv/.installed $(RUST)
	@$(call say,Building headrace (release) into .venv-free-threaded: minutes the first time)
	@$(call need,cargo,Rust 1.93 or newer)
	@VIRTUAL_ENV=$(CURDIR)/.venv-free-threaded UNSAFE_PYO3_SKIP_VERSION_CHECK=1 \
		.venv/bin/maturin develop --release --locked --target-dir $(or $(CARGO_TARGET_DIR),target)/free-threaded
	@touch $@

$(eval $(call environment,.venv,dev))
$(eval $(call environment,.venv-demo,demo))
$(eval $(call environment,.venv-bench,bench))
$(eval $(call environment,.venv-docs,docs))
$(eval $(call environment,.venv-lock,lock))
$(eval $(call overlay,.venv-peers,peers))
$(eval $(call overlay,.venv-ray,ray))
$(eval $(call build,.venv))
$(eval $(call build,.venv-demo))
$(eval $(call build,.venv-bench))

.PHONY: help demo test free-threaded check bench docs lock clean

help: ## this list
	@echo "headrace: a data loader for model training"
	@echo
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: .venv-demo/.built ## build, then load this machine's own text; kill it, resume on other ranks, compare
	@.venv-demo/bin/headrace demo

test: .venv/.built .venv-peers/.installed .venv-ray/.installed ## every test: the Rust core, then Python (PYTEST_ARGS="-k state" for some)
	@$(call say,The servers of the tests: versitygw and fake-gcs-server (Go) and azurite (npm))
	@.venv/bin/python tests/tools/programs.py
	@$(call say,Rust tests)
	@.venv/bin/python tests/tools/s3_server.py --run cargo test --locked -p headrace
	@$(call say,Python tests)
	@.venv/bin/python -m pytest $(PYTEST_ARGS)

free-threaded: .venv/.built .venv-free-threaded/.built ## tests on a CPython without a GIL, which it builds (CPYTHON=archive of its sources)
	@$(call say,Tests of loaders)
	@.venv-free-threaded/bin/python -m pytest -m "not slow" $(FREE_THREADED_TESTS)
	@$(call say,Loaders in several threads)
	@.venv/bin/python -m pytest -s tests/test_free_threaded.py

check: .venv/.built ## every check that runs no test: formats, lints, types, stubs, links
	@$(call say,cargo fmt)
	@cargo fmt --all --check
	@$(call say,cargo clippy)
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@$(call say,ruff)
	@.venv/bin/ruff format --check
	@.venv/bin/ruff check
	@$(call say,pyright)
	@.venv/bin/pyright
	@$(call say,stubtest)
	@.venv/bin/python -m mypy.stubtest headrace._core --mypy-config-file pyproject.toml \
		--allowlist tools/stubtest-allowlist.txt --ignore-unused-allowlist
	@$(call say,lengths of files and links between documents)
	@.venv/bin/python tools/check_tree.py

bench: .venv-bench/.built ## time the loader beside others (BENCH_ARGS="--quick" for a trial, BENCH_DATA=folder)
	@$(call say,Rows of tokens)
	@.venv-bench/bin/python -m headrace.bench tokens $(BENCH_DATA) $(BENCH_ARGS)
	@$(call say,Samples)
	@.venv-bench/bin/python -m headrace.bench samples $(BENCH_DATA) $(SAMPLES_ARGS)
	@$(call say,Preparing data)
	@.venv-bench/bin/python -m headrace.bench preparing $(BENCH_DATA) $(PREPARING_ARGS)
	@$(call say,Pipelines)
	@.venv-bench/bin/python -m headrace.bench pipelines $(BENCH_DATA) $(PIPELINES_ARGS)
	@$(call say,Token files)
	@.venv-bench/bin/python -m headrace.bench records $(BENCH_DATA) $(RECORDS_ARGS)
	@$(call say,Fetching from versitygw)
	@.venv-bench/bin/python tests/tools/s3_server.py --serve \
		.venv-bench/bin/python -m headrace.bench fetch s3://data/fetch $(SAMPLES_ARGS)

docs: .venv-docs/.installed ## build the documentation into site/
	@$(call say,Documentation into site/)
	@.venv-docs/bin/mkdocs build --strict --quiet
	@echo "site/index.html is the first page"

lock: .venv-lock/.installed ## write the exact versions of requirements/*.txt anew
	@$(call say,Versions)
	@cd requirements; for list in bench dev demo docs free-threaded lock peers ray; do \
		../.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --upgrade \
			--no-emit-index-url --custom-compile-command "make lock" $$list.in -o $$list.txt \
			$$([[ $$list = demo || $$list = ray ]] && echo --constraints dev.txt); echo "requirements/$$list.txt"; done

clean: ## remove everything that these commands made
	@rm -rf .venv .venv-bench .venv-demo .venv-docs .venv-free-threaded .venv-lock .venv-peers .venv-ray .cache site demo-data target python/headrace/_core*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean"
