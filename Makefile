# Everything a newcomer needs: `make run` starts the server, `make test` passes the tests. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
IMAGE_EXTRAS := $(addprefix --extra ,anthropic openai google bedrock postgres dolt mcp files)
# A lock file names every package, so it is installed with --no-deps. Otherwise pip resolves again, and where one package asks
# for "google-auth" and another for "google-auth[requests]", it takes the newest release, which has no hash here.
LOCK := $(BIN)/uv pip compile --no-strip-extras --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"

CORES = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
# More than there are processors, since tests wait for processes and sockets too. Workers are forks, which share imported modules.
WORKERS ?= $(shell $(PYTHON) -c 'print($(CORES) * 2)')

# Where `make openwebui` installs Open WebUI, which needs Python 3.11 or 3.12.
OPEN_WEBUI ?= .venv-openwebui

# Modules are compiled once, since the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install run test soak openwebui check site bench bench-retrieval bench-search pictures lock dist types
DIST ?= dist
help:
	@echo "make run      start the server on http://127.0.0.1:8283; the first time it sets up .venv, in one to three minutes"
	@echo "make test     run the tests, but for those of the architecture, which make check runs"
	@echo "make soak     run the long campaigns and property tests, and write their results into docs/operate/trust.md"
	@echo "make openwebui  install Open WebUI 0.12.4 (3 GB) beside .venv, and run what docs/tutor/open-webui.md says against it"
	@echo "make check    formatter, linter, strict types, architecture, links of the docs"
	@echo "make site     build the site of docs/ into site/, strictly"
	@echo "make bench    measure speed and size, and print a table"
	@echo "make bench-retrieval, make bench-search  measure what search finds, and how fast"
	@echo "make dist     build the sdist and the wheel into dist/, with the list of packages they need (SBOM)"
	@echo "make types    write the types of the TypeScript client again, from the OpenAPI document; needs Node.js"
	@echo "make pictures  make the pictures of the README anew, in a browser"
	@echo "make install  set up .venv (the others do it when needed)"
	@echo "make lock     compile requirements/*.txt again"

install: .venv/.installed
run: .venv/.installed
	$(BIN)/ricordo serve
test: .venv/.developing
	$(BIN)/python -m pytest -p no:xdist --workers $(WORKERS) --ignore=tests/test_architecture.py $(ARGS)
soak: .venv/.developing
	$(BIN)/python -m pytest -n $(CORES) --dist worksteal -m soak --hypothesis-profile=long --campaigns docs/operate/campaigns.json $(ARGS); \
		ended=$$?; $(BIN)/python -m tests.support.campaign_record && exit $$ended
openwebui: .venv/.developing $(OPEN_WEBUI)/.installed
	OPEN_WEBUI=$(OPEN_WEBUI) $(BIN)/python -m pytest -q -s -p no:xdist -m openwebui tests/features/openwebui/mirror/test_real.py $(ARGS)
check: .venv/.developing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:xdist tests/test_architecture.py
	$(BIN)/zensical build --strict
site: .venv/.developing
	$(BIN)/zensical build --strict --clean
bench: .venv/.developing
	$(BIN)/python -m bench $(ARGS)
bench-retrieval: .venv/.developing
	$(BIN)/python -m bench.retrieval $(ARGS)
bench-search: .venv/.developing
	$(BIN)/python -m bench.search $(ARGS)
pictures: .venv/.developing
	RICORDO_PICTURES=1 $(BIN)/python -m pytest -q -p no:xdist -m "soak or not soak" tests/features/web/pages/test_pictures.py
lock: .venv/.developing
	$(LOCK) pyproject.toml requirements/base.in --extra anthropic --extra openai --extra mcp -o requirements/base.txt
	$(LOCK) pyproject.toml -c requirements/base.txt --extra embeddings -o requirements/embeddings.txt
	$(LOCK) pyproject.toml -c requirements/base.txt -c requirements/embeddings.txt --extra files -o requirements/files.txt
	$(LOCK) requirements/dev.in -o requirements/dev.txt
	$(LOCK) pyproject.toml requirements/base.in -c requirements/dev.txt $(IMAGE_EXTRAS) -o requirements/container.txt

types: .venv/.developing
	cd clients/typescript && npm ci
	$(BIN)/python deploy/typescript_types.py
dist: .venv/.developing
	$(BIN)/python -m hatchling build --directory $(DIST)
	$(BIN)/python deploy/sbom.py $(DIST)

# torch is installed first and separately, so that an installed build without GPU support is kept.
$(OPEN_WEBUI)/.installed:
	$(PYTHON) -m venv $(OPEN_WEBUI)
	$(OPEN_WEBUI)/bin/pip install --quiet torch==2.13.0
	$(OPEN_WEBUI)/bin/pip install --quiet open-webui==0.12.4
	@touch $@

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Ricordo needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	@touch $@
.venv/.installed: .venv/.created requirements/base.txt requirements/embeddings.txt requirements/files.txt pyproject.toml
	@echo "Installing Ricordo and the packages it needs into .venv, which takes one to three minutes, once."
	$(PIP) install --quiet --no-deps --require-hashes -r requirements/base.txt
	@# The embedded model has no build for some platforms, and search does without it.
	$(PIP) install --quiet --no-deps --require-hashes --only-binary wordllama -r requirements/embeddings.txt \
		|| echo "The embedded model cannot be installed here: search goes by words alone, see docs/internals/retrieval.md."
	$(PIP) install --quiet --no-deps --require-hashes --only-binary :all: -r requirements/files.txt \
		|| echo "The parsers of files cannot be installed here: plain text is read without them, see docs/agents/files.md."
	$(PIP) install --quiet --no-deps --no-build-isolation --no-index -e .
	@$(BIN)/python -m compileall -q ricordo
	@touch $@
.venv/.developing: .venv/.installed requirements/dev.txt
	$(PIP) install --quiet --no-deps --require-hashes -r requirements/dev.txt
	@touch $@
