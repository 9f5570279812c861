"""Make all pages of docs/results, one after the other, and print one line for each.

    python -m benchmarks [NAME ...] [--exporter-python PATH]

Finished parts are kept in runs/results, so a repeated command continues where the first one was interrupted. A page
that fails does not stop the other pages; the exit status is then 1. Most pages measure latencies, so nothing else may
run on the machine.
"""

import argparse
import subprocess
import sys
import time

from benchmarks.record import PAGES, ROOT


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"these pages only: {', '.join(PAGES)}")
    arguments.add_argument("--exporter-python", metavar="PATH", help="passed to benchmarks.exports")
    parsed = arguments.parse_args()
    if unknown := set(parsed.names) - set(PAGES):
        arguments.error(f"there is no page named {sorted(unknown)[0]!r}")
    names, failed = parsed.names or list(PAGES), 0
    for number, name in enumerate(names):
        started = time.monotonic()
        options = ["--exporter-python", parsed.exporter_python] if parsed.exporter_python and name == "exports" else []
        status = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], cwd=ROOT).returncode
        failed += status != 0
        minutes, left = (time.monotonic() - started) / 60, sum(PAGES[other] for other in names[number + 1 :])
        print(f"{name}: {'FAILED' if status else 'made'} in {minutes:.0f} min, at most {left} min left", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
