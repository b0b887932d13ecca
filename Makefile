PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce lint test test32 test-slow bench beyond coverage sweeps lock clean

reproduce: $(READY) ## run section 5 of the paper and write a report into reproduce-out/
	$(BIN)/ergodrift reproduce

lint: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test: lint ## and tests and doctests
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test32: $(READY) ## the tests that do not need 64-bit numbers, without them, as users find JAX
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --x64=off

test-slow: $(READY) ## what takes long: walks under faults, two machines, the code of the docs
	$(BIN)/pytest -n 2 --dist worksteal -m slow

bench: $(READY) ## measure; prints ratios and writes bench-results/*.json
	-$(BIN)/pip install --quiet -r benchmarks/requirements.lock
	for name in one_seed why step_overhead memory_cost experiment growth sparse reference cold_start walk; do \
	  $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

beyond: $(READY) ## RDPP and WDPP beside the paper's algorithms; writes beyond-out/
	$(BIN)/python -m studies.beyond

coverage: $(READY) ## intervals and mixing times on data whose truth is known; writes coverage-out/
	$(BIN)/python -m studies.coverage

sweeps: $(READY) ## anytime and batch intervals and relaxation times on data whose truth is known; tables into docs/trust.md
	$(BIN)/python -m studies.sweeps --write-docs

# Versions for the commands above are locked; the package itself states ranges.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or later is needed, this is {sys.version}; pass PYTHON=python3.12"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

lock: ## bring requirements.lock up to date
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m uv pip compile --upgrade --universal --python-version 3.11 --extra dev --no-header --no-annotate \
	  --no-emit-index-url pyproject.toml -o requirements.lock

clean:
	rm -rf .venv bench-results beyond-out coverage-out reproduce-out sweeps-out walk-out
