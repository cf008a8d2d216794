# serve: the embedded default model behind the OpenAI API.   test: everything.   Both make what they need.
# conformance: real clients (Claude Code, Codex, LM Studio's and Ollama's SDKs, LiteLLM, LangChain) against the server;
#              needs Node.js and npm too.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

# A machine without an NVIDIA GPU takes the pinned CPU versions, so that pip never chooses a CUDA build of torch.
CONSTRAINTS := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 || echo -c constraints-cpu.txt)

.PHONY: serve test conformance check lint clean

serve: $(VENV)/.installed
	$(BIN)/python supervisor.py $(ARGS)

# Files in their own order: xdist would begin with those of most tests, and the longest one has twelve.
test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

conformance: $(VENV)/.installed-conformance
	$(BIN)/python -m pytest --timeout=300 conformance

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy

lint: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
		|| { echo "Python 3.11 or 3.12 is needed; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints-cpu.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q $(CONSTRAINTS) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints-cpu.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q $(CONSTRAINTS) -e '.[test]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-conformance: $(VENV)/.installed-test conformance/requirements.txt conformance/package.json
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install --disable-pip-version-check -q -r conformance/requirements.txt
	mkdir -p $(VENV)/npm && cp conformance/package.json $(VENV)/npm/
	npm install --prefix $(VENV)/npm --no-audit --no-fund --silent
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
