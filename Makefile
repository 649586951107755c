# Every target sets up .venv when it is missing or out of date, and does nothing for that the second time.
#   make demo    the main job on the embedded model, in about seven minutes
#   make test    everything: check, all tests with the embedded model, a browser and strace (at most 15 minutes)
#   make check   format, lint, types, layers and the fast tests
#   make bench   print the ratios that the documentation quotes
#   make soak    long load and fault runs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pip reads a constraints file's torch only once torch is there: the pinned build must be installed first,
# or another package pulls in a newer one with gigabytes of GPU libraries.
TORCH := $(shell grep '^torch==' constraints.txt)
XDIST := -n 2 --dist worksteal

.PHONY: demo test check fast-tests static bench soak setup tools clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

static: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast-tests: $(READY)
	$(BIN)/python -m pytest -q $(XDIST) -m "not slow and not soak"

check: static fast-tests

# What some tests drive and pip cannot bring. Where it cannot be installed, those tests say so and fail.
tools:
	@missing=; command -v strace >/dev/null || missing=strace; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="$$missing chromium"; \
	if [ -n "$$missing" ]; then \
	  echo "installing $$missing"; as=; [ "$$(id -u)" = 0 ] || as="sudo -n"; \
	  { $$as apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$as apt-get install -y -qq \
	    --no-install-recommends $$missing; } >/dev/null || echo "could not install $$missing; do it by hand."; \
	fi

test: static tools
	$(BIN)/python -m pytest -q $(XDIST) -m "not soak"

soak: $(READY) tools
	$(BIN)/python -m pytest -q -m soak

bench: $(READY)
	for name in corpus_memory finetune_throughput ensemble_training ensemble_decode mixing screening dp_step exposure membership ledger service; do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done
	@echo "== tacit experiment reg-overhead"
	@work=$$(mktemp -d) && $(BIN)/tacit experiment reg-overhead --work $$work; found=$$?; rm -rf $$work; exit $$found
	@echo "Utility on your own text: $(BIN)/python benchmarks/submix_utility.py --help"

clean:
	rm -rf $(VENV) demo
