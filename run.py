"""The command line of RLFlow in a checkout; `python run.py --help` lists the commands."""

import sys

from rlflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
