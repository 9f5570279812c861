# `make demo`: one model from start to finish.  `make test`: the tests.  Both need Python 3.11, pip and make alone.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test docs clean

demo: .venv/ready
	$(BIN)/python run.py optimise light_densenet121 --config configs/demo.yaml --run runs/demo --out runs/demo/faster.onnx

test: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2

# After a change of the rules or of docs/results: the pages that are written by the machine.
docs: .venv/ready
	$(BIN)/python run.py rules docs --out docs/RULES.md
	$(BIN)/python -m benchmarks.pages

.venv/ready: setup.py constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" || { echo "RLFlow needs Python 3.11; name it with: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/ready-test: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv runs build *.egg-info
