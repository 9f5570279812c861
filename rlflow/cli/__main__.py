"""`python -m rlflow.cli`: the command line where there is no run.py."""

import sys

from rlflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
