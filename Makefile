# `make demo`: one real model made faster, in less than three minutes.  `make demo-learn`: the four stages of learning.
# `make test`: linter and tests.  All need Python 3.11 to 3.13, pip and make alone.

SUPPORTED := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# The newest that runs: a name on PATH can be a shim that leads nowhere, or a Python without venv and pip.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c "$(SUPPORTED)" 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin

.PHONY: demo demo-learn test docs results nightly clean

# The searches use the analytic cost: on a machine that has timed no operator yet, timing takes longer than the demo.
demo: .venv/ready-demo
	$(BIN)/python run.py optimise light_densenet121 --seconds 60 --run runs/demo --out runs/demo/faster.onnx cost.name=analytic

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

# All pages of docs/results, about six hours on two calm cores; goes on where it was stopped.
# `make results EXPORTERS=PATH` names the Python that has the exporters (benchmarks/exports).
results: .venv/ready
	$(BIN)/python -m benchmarks $(if $(EXPORTERS),--exporter-python $(EXPORTERS))

# The long checks of correctness, up to two hours: one line for each; logs in runs/nightly.
nightly: .venv/ready-nightly
	$(BIN)/python -m tests.nightly

$(BIN)/pip:
	@"$(PYTHON)" -c "$(SUPPORTED)" 2>/dev/null || { echo "RLFlow needs Python 3.11, 3.12 or 3.13 with venv and pip; name it with: make PYTHON=..."; exit 1; }
	"$(PYTHON)" -m venv .venv

.venv/ready-demo: setup.py constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/ready: setup.py constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[learn]'
	@touch $@

.venv/ready-test: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[learn,test]'
	@touch $@

# The extras of single tasks, whose tests are skipped by day.
.venv/ready-nightly: .venv/ready-test
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[learn,test,expressions,place]'
	@touch $@

clean:
	rm -rf .venv runs build *.egg-info
