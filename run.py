"""The command line of RLFlow, from a checkout: `python run.py --help` teaches it."""

import sys

from rlflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
