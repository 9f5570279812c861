"""Run the command line of an installed package: `python -m rlflow.cli`."""

import sys

from rlflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
