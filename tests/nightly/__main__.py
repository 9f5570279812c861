"""Run all long checks, one after the other, and print one line for each.

    python -m tests.nightly [NAME ...] [--again]

A line states the outcome of a check and its seconds; the exit status is 1 if a check failed. The whole output of a
check is in runs/nightly/COMMIT/NAME.log. A check that has passed at this commit is not run again without --again, so a
repeated command continues where the first one was interrupted.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
GRACE = 60  # seconds in which an interrupted check can state its outcome
CHECKS = {  # name → (module in tests.nightly and its arguments, time limit in seconds)
    "onnx suite": (["onnx_suite"], 600),
    "proofs": (["proofs"], 2400),
    "mutations": (["mutations", "--seconds", "300"], 900),
    "fuzz": (["fuzz", "--seconds", "300"], 600),
    "fuzz, symbolic": (["fuzz", "--symbolic", "--seconds", "120"], 400),
    "replay": (["replay", "--seconds", "120"], 400),
    "faults": (["faults", "--seconds", "240"], 700),
    "kills": (["kills"], 1200),
    "slow tests": (["slow_tests"], 4500),
    "field": (["field"], 1200),
    "large model": (["large_model"], 1200),
    "installation": (["installation"], 600),
}


def commit() -> str:
    """Return the abbreviated hash of the current commit, with "-changed" appended if the working tree has changes.

    The result is "unknown" outside a repository.
    """
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + ("-changed" if changed else "")


def outcome(name: str, folder: Path) -> dict:
    """Run a check.

    After its time limit, the check is interrupted, as by Ctrl-C, so that it can still state how far it came; the
    processes that are left GRACE seconds later are killed.

    Args:
        name: key of CHECKS.
        folder: folder of the log file NAME.log.

    Returns:
        "passed": True if the exit status is 0. "line": the last line of standard output. "seconds": duration.
    """
    (module, *arguments), limit = CHECKS[name]
    command = [sys.executable, "-m", f"tests.nightly.{module}", *arguments]
    started, stopped = time.monotonic(), False
    with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
        pipes = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as check:
            try:
                output, _ = check.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                stopped = True
                output = interrupted(check)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(check.pid, signal.SIGKILL)
        log.write(f"\n{output}")
    lines = output.strip().splitlines()
    line = lines[-1] if lines else f"ended without an outcome; see {name}.log"
    if stopped:
        line = f"stopped after {limit} s: {line}"
    passed = check.returncode == 0 and not stopped
    return {"passed": passed, "line": line, "seconds": round(time.monotonic() - started)}


def interrupted(check: subprocess.Popen) -> str:
    """Interrupt all processes of a check, kill them GRACE seconds later, and return the check's standard output."""
    for number, limit in ((signal.SIGINT, GRACE), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(check.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return check.communicate(timeout=limit)[0]
    raise AssertionError("a process outlives SIGKILL")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"these checks only: {', '.join(CHECKS)}")
    arguments.add_argument("--again", action="store_true", help="run checks again that passed at this commit")
    parsed = arguments.parse_args()
    if unknown := set(parsed.names) - set(CHECKS):
        arguments.error(f"there is no check named {sorted(unknown)[0]!r}")
    state = commit()
    folder, failed, seconds = ROOT / "runs" / "nightly" / state, 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in parsed.names or CHECKS:
        path = folder / f"{name}.json"
        result = json.loads(path.read_text()) if path.exists() else {"passed": False}
        if parsed.again or not result["passed"] or state == "unknown" or state.endswith("-changed"):
            result = outcome(name, folder)
            path.write_text(json.dumps(result))
        failed, seconds = failed + (not result["passed"]), seconds + result["seconds"]
        verdict = "passed" if result["passed"] else "FAILED"
        print(f"{name}: {verdict}: {result['line']}, {result['seconds']} s", flush=True)
    print(f"{failed} failed, {seconds / 60:.0f} min, commit {state}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
