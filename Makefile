# `make demo`: one real model made faster, in less than three minutes.  `make demo-learn`: the four stages of learning.
# `make test`: linter and tests.  All need Python 3.11 to 3.13, pip and make alone.

SUPPORTED := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# The newest that runs: a name on PATH can be a shim that leads nowhere, or a Python without venv and pip.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c "$(SUPPORTED)" 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin

.PHONY: demo demo-learn test docs results nightly clean

demo: .venv/ready-demo
	$(BIN)/python run.py optimise light_densenet121 --seconds 60 --run runs/demo --out runs/demo/faster.onnx

LEARN := --run runs/demo-learn
demo-learn: .venv/ready
	$(BIN)/python run.py collect $(LEARN) --model squeezenet1_1 --config configs/demo.yaml
	$(BIN)/python run.py train-wm $(LEARN)
	$(BIN)/python run.py train-controller $(LEARN)
	$(BIN)/python run.py eval $(LEARN)

test: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 25

# After a change of the rules, of an option or of a record: the pages that are written by a program.
docs: .venv/ready
	$(BIN)/python run.py rules docs --out docs/RULES.md
	$(BIN)/python -m rlflow.runs.config
	$(BIN)/python -m benchmarks.record

# All pages of docs/results, about twelve hours on two calm cores; goes on where it was stopped.
# `make results EXPORTERS=PATH` names the Python that has the exporters (benchmarks/exports).
results: .venv/ready
	$(BIN)/python -m benchmarks $(if $(EXPORTERS),--exporter-python $(EXPORTERS))

# The long checks of correctness, up to two hours: one line for each; logs in runs/nightly. If Chromium cannot be
# downloaded, the tests look for Chromium or Chrome on the system.
nightly: .venv/ready-nightly
	-$(BIN)/playwright install chromium
	$(BIN)/python -m tests.nightly

$(BIN)/pip:
	@"$(PYTHON)" -c "$(SUPPORTED)" 2>/dev/null || { echo "RLFlow needs Python 3.11, 3.12 or 3.13 with venv and pip; name it with: make PYTHON=..."; exit 1; }
	"$(PYTHON)" -m venv .venv

# pip compiles no package here: Python compiles the modules that are imported, which are a small part of TensorFlow's.
# A process keeps the bytecode for the next one, also where the environment says not to write any.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt

.venv/ready-demo: setup.py constraints.txt | $(BIN)/pip
	$(INSTALL) --editable .
	@touch $@

.venv/ready: setup.py constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[learn]'
	@touch $@

# One call of pip, because each call resolves all requirements.
.venv/ready-test: setup.py constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[learn,test]'
	@touch .venv/ready $@

# What tests need that are skipped by day: the extras of single tasks, third-party agents, Ray and a browser. The extra
# `packing` is left out: ortools needs an older protobuf than constraints.txt has.
.venv/ready-nightly: setup.py constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[learn,test,nightly,distributed,expressions,place,agents]'
	@touch .venv/ready .venv/ready-test $@

clean:
	rm -rf .venv build *.egg-info
