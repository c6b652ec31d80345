# Every target sets up what it needs in .venv, on a machine with nothing but Python ≥ 3.11; a second call reuses it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
EXTRA ?= cpu
ARGS ?=
PYTHON ?=

RUN := $(VENV)/bin/python
# Wheels only: a dependency that would need a compiler is refused by name instead of failing half-way through a build.
PIP_INSTALL := $(RUN) -m pip install --disable-pip-version-check --only-binary :all: -c constraints.txt
SERVE := $(VENV)/.ready-serve-$(EXTRA)
DEV := $(VENV)/.ready-dev-$(EXTRA)
OTHER := $(if $(filter gpu,$(EXTRA)),cpu,gpu)
OTHER_WHEEL := $(if $(filter gpu,$(EXTRA)),onnxruntime,onnxruntime-gpu)

ifeq ($(filter cpu gpu,$(EXTRA)),)
$(error EXTRA is cpu or gpu, not '$(EXTRA)')
endif

.PHONY: help serve test prove lint format bench lock audit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  ARGS='--port 9000' is passed on.  EXTRA=gpu installs the CUDA build.  PYTHON=/path/to/python3 chooses the Python."

serve: $(SERVE) ## run the server (needs no compiler, no GPU)
	@$(VENV)/bin/framelane serve $(ARGS)

# Most of their time is waiting, so files run side by side; but those that watch processes closely have the machine alone.
ALONE := tests/e2e tests/server/slots tests/server/doors/test_isolation.py

test: $(DEV) ## run the tests; ARGS runs some of them
ifeq ($(strip $(ARGS)),)
	@$(RUN) -m pytest -n 2 --dist loadfile $(addprefix --ignore=,$(ALONE))
	@$(RUN) -m pytest $(ALONE)
else
	@$(RUN) -m pytest $(ARGS)
endif

prove: $(DEV) ## run the long proofs: tests marked `prove`, then the harnesses
	@$(RUN) -m pytest -m prove $(ARGS)
	@$(RUN) -m framelane.loadtests.prove

lint: $(DEV) ## ruff and mypy
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

format: $(DEV) ## let ruff format and fix what it can
	@$(RUN) -m ruff format .
	@$(RUN) -m ruff check --fix .

bench: $(DEV) ## measure throughput and latency on this machine
	@$(RUN) -m framelane.loadtests.bench $(ARGS)

# Resolved once for every supported Python; the repeated "linux, < 3.15" of every line is dropped.
lock: $(RUN) ## renew constraints.txt with the newest versions that fit
	@$(RUN) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: uv
	@{ echo "# Exact versions of everything, for Python 3.11–3.14 and all extras. Made by 'make lock'."; \
	  build/lock/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --quiet \
	    --only-binary :all: --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
	  | sed -E -e "s/ and sys_platform == 'linux'//" -e "s/python_full_version < '3.15'( and )?//" -e "s/ (and|;) *$$//"; \
	} > build/constraints.txt
	@mv build/constraints.txt constraints.txt

# --strict: else what could not be looked up counts as clean. ARGS='-s osv' asks another service.
audit: $(RUN) ## ask PyPI for known vulnerabilities of constraints.txt
	@$(RUN) -m venv build/audit
	@build/audit/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: pip-audit
	@status=0; build/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt $(ARGS) \
	  >build/audit/report 2>&1 || status=$$?; \
	tail -n 40 build/audit/report; \
	if grep -qE "could not be audited|ConnectionError|ConnectTimeout|ReadTimeout|HTTPError" build/audit/report; then \
	  echo "audit: the service could not be asked, so nothing is known" >&2; exit 2; fi; \
	exit $$status

clean: ## remove environments, builds and caches
	rm -rf $(VENV) build dist framelane.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The newest Python that runs and can make environments. A name on the PATH may be a stub that does not run.
$(RUN):
	@found=""; lacks_venv=""; \
	for python in $(or $(PYTHON),python3.14 python3.13 python3.12 python3.11 python3); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; \
	  lacks_venv=$$python; \
	done; \
	if [ -z "$$found" ] && [ -n "$$lacks_venv" ]; then \
	  echo "error: $$lacks_venv cannot make environments. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; fi; \
	if [ -z "$$found" ]; then \
	  echo "error: $(if $(PYTHON),PYTHON=$(PYTHON) is not a Python ≥ 3.11 that runs,found no Python ≥ 3.11; install one or give PYTHON=/path/to/python3)" >&2; exit 1; fi; \
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)

# The two builds of ONNX Runtime overwrite each other's files: never both.
define only_one_runtime
@if [ -n "$$(find $(VENV)/lib -maxdepth 3 -iname '$(subst -,_,$(OTHER_WHEEL))-*.dist-info')" ]; then \
  $(RUN) -m pip uninstall --disable-pip-version-check -y onnxruntime onnxruntime-gpu; fi
@rm -f $(VENV)/.ready-*-$(OTHER)
endef

$(VENV)/.ready-serve-$(EXTRA): pyproject.toml constraints.txt | $(RUN)
	$(only_one_runtime)
	$(PIP_INSTALL) -e '.[$(EXTRA)]'
	@touch $@

$(VENV)/.ready-dev-$(EXTRA): pyproject.toml constraints.txt | $(RUN)
	$(only_one_runtime)
	$(PIP_INSTALL) -e '.[$(EXTRA),loadtest,dev]'
	@touch $@ $(SERVE)
