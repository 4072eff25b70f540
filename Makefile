# Every chore has one verb; CI runs the verbs that a person runs. `make help` lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch's index of CPU wheels; used only where it answers within 3 s. Empty means none.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
# Where the gateway and the trainer keep archives; the same setting the programs read.
TORCHGATE_MODEL_STORE ?= model_store
export TORCHGATE_MODEL_STORE
# What runs the models: grpc or rest (a TorchServe beside the gateway), or workers (the gateway itself, no Java).
ifdef BACKEND
TORCHGATE_BACKEND := $(BACKEND)
endif
TORCHGATE_BACKEND ?= grpc
serve: export TORCHGATE_BACKEND := $(TORCHGATE_BACKEND)
serve: export TORCHGATE_WITH_TORCHSERVE := $(if $(filter workers,$(TORCHGATE_BACKEND)),false,true)
READY := $(VENV)/.ready
# What serving and training need, without the tools of those who work on torchgate.
RUNNABLE := $(VENV)/.runnable
# Which part of the benchmark: default, quick (does it work?) or full (the whole matrix).
BENCH ?= default
# Clients of `make tune`'s closed loop.
CLIENTS ?= 64
PEERS := benchmarks/out/venv
# axe-core, which the tests of the pages run in the browser.
AXE := build/axe
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup serve test cpp lint fmt train-and-archive lock sbom bench bench-training tune system-packages test-system test-soak test-compose proto docs clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## the virtual environment .venv with everything, by the versions and hashes of deploy/locked

$(READY): $(RUNNABLE) deploy/locked/all.txt
	$(INSTALL_LOCKED) deploy/locked/all.txt
	@touch $@

# uv installs in a fifth of pip's time. Where it cannot, such as with an index that only pip.conf names, pip does it.
INSTALL_LOCKED = @install_locked() { VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --require-hashes -r "$$1" || \
	$(PIP_INSTALL) --no-deps --require-hashes -r "$$1"; }; set -x; install_locked

$(RUNNABLE): pyproject.toml client/pyproject.toml constraints.txt deploy/locked/setup.txt deploy/locked/serve.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "torchgate needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --no-deps --require-hashes -r deploy/locked/setup.txt
	$(INSTALL_LOCKED) deploy/locked/serve.txt
	@# torch has no hash: which file it is depends on the index. All else that it needs is there by now.
	@index=; if [ -n "$(TORCH_INDEX_URL)" ] && timeout 3 $(PYTHON) -c \
	  'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=3).close()' "$(TORCH_INDEX_URL)" 2>/dev/null; \
	  then index="--extra-index-url $(TORCH_INDEX_URL)"; fi; \
	set -x; $(PIP_INSTALL) $$index -c constraints.txt torch
	$(PIP_INSTALL) --no-deps --no-build-isolation -e . -e client
	@touch $@

lock: ## deploy/locked anew, after a change of constraints.txt or pyproject.toml; needs PyPI
	@test -x $(BIN)/uv || $(MAKE) setup
	PATH="$(abspath $(BIN)):$$PATH" deploy/lock.sh

sbom: ## build/sbom/IMAGE.cdx.json, a CycloneDX SBOM of each image that `docker compose build` has made
	@mkdir -p build/sbom; set -e; for image in gateway torchserve trainer; do \
	  docker run --rm --network none --entrypoint cat "torchgate-$$image:$${TORCHGATE_TAG:-latest}" \
	    /usr/share/doc/torchgate/sbom.cdx.json >"build/sbom/$$image.part"; \
	  mv "build/sbom/$$image.part" "build/sbom/$$image.cdx.json"; echo "build/sbom/$$image.cdx.json"; done

serve: $(RUNNABLE) ## everything: train if model_store/ is empty, then TorchServe and the gateway, until Ctrl-C; BACKEND=workers: the gateway alone
	@mkdir -p "$(TORCHGATE_MODEL_STORE)" 2>/dev/null || :  # check says why, if it could not be made
	@$(BIN)/torchgate check
	@if [ ! -f "$(TORCHGATE_MODEL_STORE)/manifest.json" ]; then $(MAKE) train-and-archive; fi
	@run=$$(mktemp -d) && trap 'rm -rf "$$run"' EXIT && trap : INT TERM && \
	$(if $(filter workers,$(TORCHGATE_BACKEND)),,TORCHGATE_VERIFIED_ARCHIVES_DIR="$${TORCHGATE_VERIFIED_ARCHIVES_DIR:-$$run/archives}" \
	TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET="$${TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET:-$$run/management/socket}") \
	TORCHGATE_RUN_DIR="$$run" TORCHGATE_BIN="$(abspath $(BIN))" \
	$(BIN)/python deploy/tuned_settings.py "$(TORCHGATE_MODEL_STORE)/tuned.env" $(BIN)/python deploy/supervise.py -c deploy/supervisord.conf && \
	if [ -e "$$run/failed" ]; then exit 1; fi

train-and-archive: $(RUNNABLE) ## data, training, evaluation, quantization, export, archives: runs/ and model_store/
	$(BIN)/python -m training pipeline

$(PEERS)/.ready: $(READY) benchmarks/requirements.txt constraints.txt
	$(BIN)/python -m venv --clear $(PEERS)
	@# It sees the project's packages and adds the peers: nothing in $(VENV) changes.
	$(BIN)/python -c 'import sys, sysconfig; print(sysconfig.get_paths()["purelib"], file=open(sys.argv[1], "w"))' \
	  "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/project.pth"
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements.txt
	@touch $@

bench: $(PEERS)/.ready ## torchgate and its peers, measured, and the targets held against it; BENCH=quick|full, ONLY=mosec/small/64, FRESH=1, PUBLISH=1
	$(PEERS)/bin/python -m benchmarks bench --mode $(BENCH) --only '$(ONLY)' $(if $(FRESH),--fresh) $(if $(PUBLISH),--publish)

bench-training: setup ## the training side's tables: operators, forms of the network, strategies; BENCH=quick, ONLY=forms, PUBLISH=1
	$(BIN)/python -m benchmarks training --mode $(BENCH) --only '$(ONLY)' $(if $(PUBLISH),--publish)

tune: $(PEERS)/.ready ## the best settings for the archives in model_store/ on this machine, into model_store/tuned.env; CLIENTS=64
	$(PEERS)/bin/python -m benchmarks tune --store "$(TORCHGATE_MODEL_STORE)" --backend '$(TORCHGATE_BACKEND)' --clients $(CLIENTS)

lint: setup ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: setup ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tests that wait for others' work, or train something tiny, run two files at a time.
TWO_AT_A_TIME := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -n 2 --dist loadfile
NEED_QUIET := $(addprefix tests/end_to_end/test_,backends.py chaos.py restarts.py serve.py workers.py)

# First what needs the machine to itself.
test: lint ## linters, types, and every test that needs only packages from PyPI, with a real TorchServe among them
	$(BIN)/pytest -m "not system and not soak" $(NEED_QUIET)
	$(TWO_AT_A_TIME) -m "not system and not soak" $(addprefix --ignore ,$(NEED_QUIET))

system-packages: ## Debian packages that test-system and bench need (uses sudo unless root)
	@as_root=; [ "$$(id -u)" = 0 ] || as_root=sudo; set -x; \
	$$as_root apt-get update -qq && \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  prometheus wrk libtcmalloc-minimal4 chromium chromium-driver nginx-light systemd nftables iproute2 \
	  g++ cmake make libpng-dev libjpeg-dev nlohmann-json3-dev

$(AXE)/.ready: tests/system/axe.txt $(READY)
	rm -rf $(AXE)
	$(PIP_INSTALL) --no-deps --require-hashes --target $(AXE) -r tests/system/axe.txt
	@touch $@

test-system: setup $(AXE)/.ready ## the tests that need system packages; fails, saying what is missing, without them
	$(TWO_AT_A_TIME) -m system

cpp: setup ## build/cpp/classify, a program that answers an image by a .pt file, without Python; needs make system-packages
	cmake -S deploy/cpp -B build/cpp -DCMAKE_PREFIX_PATH="$$($(BIN)/python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
	cmake --build build/cpp

test-soak: setup ## the long tests: minutes of load while processes are killed and restarted
	$(BIN)/pytest -m soak

test-compose: ## docker compose up on this checkout, for real; needs a Docker engine
	tests/compose.sh

proto: setup ## regenerate the messages of TorchServe's inference API
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. service/backends/torchserve/inference.proto

docs: setup ## the documentation site, in build/site; a broken link fails
	$(BIN)/python -m deploy.reference.make
	$(BIN)/zensical build --clean --strict

clean: ## remove what was built: environment, runs, archives, caches; traffic, labels and events stay
	rm -rf $(VENV) build runs mlruns data benchmarks/out *.egg-info .cache .mypy_cache .pytest_cache .ruff_cache
	find model_store -mindepth 1 ! -name README.md ! -name 'torchgate.db*' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
