"""What people get who install RLFlow: import times, and the wheel in a clean environment without TensorFlow.

The wheel of the checkout is installed with the pinned packages that it requires, from where pip finds them, into a new
environment outside the checkout; the command and the library are called there. Times are the best of several starts,
since what slows down a start is the machine's business; those of a bare Python are stated beside them.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import THREADS, bar, finish, markdown, parser
from tests.installation import ROOT, build_wheel

JUDGES = ("setup.py", "rlflow/__init__.py", "rlflow/cli/library.py", "rlflow/cli/main.py", "rlflow/env/registration.py")

STARTS = 15
IMPORT_SECONDS, HELP_SECONDS = 0.5, 0.3
MODEL = "light_squeezenet"
LIBRARY = f"""
import json, rlflow
result = rlflow.optimise("{MODEL}", seconds=60, threads={THREADS}, quiet=True)
result.save("library.onnx")
print(json.dumps({{"ratio": result.ratio, "interval": result.interval, "verdict": result.verdict,
                  "estimated_gain_percent": result.estimated_gain_percent, "says": str(result)}}))
"""
MODULES = "import sys; import rlflow; print(len(sys.modules), 'tensorflow' in sys.modules)"


def best_seconds(*command) -> float:
    """Of STARTS processes."""
    times = []
    for _ in range(STARTS):
        started = time.perf_counter()
        subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return min(times)


def called(*command, folder: Path) -> dict:
    """{"status", "seconds", "out", "says": the last lines of standard error} of a command in the folder."""
    started = time.perf_counter()
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)
    seconds, said = time.perf_counter() - started, done.stderr.replace(f"{folder}/", "").strip().splitlines()
    return {"status": done.returncode, "seconds": seconds, "out": done.stdout.strip(), "says": said[-5:]}


def installed(folder: Path) -> dict:
    """What an installation in the folder holds, and how it does."""
    environment, wheel = folder / "environment", build_wheel(folder)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python, program = environment / "bin" / "python", environment / "bin" / "rlflow"
    started = time.perf_counter()
    pins = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pins, wheel], check=True)
    install_seconds = time.perf_counter() - started
    site_packages = next(environment.glob("lib/python*/site-packages"))
    names = sorted(path.name for path in site_packages.iterdir() if ".dist-info" not in path.name)
    bare, threads = best_seconds(python, "-c", "pass"), ("--threads", str(THREADS))
    modules, tensorflow = called(python, "-c", MODULES, folder=folder)["out"].split()
    return {
        "wheel_bytes": wheel.stat().st_size, "install_seconds": install_seconds, "site_packages": names,
        "bytes": sum(path.lstat().st_size for path in site_packages.rglob("*")),
        "bare_seconds": bare, "import_seconds": best_seconds(python, "-c", "import rlflow") - bare,
        "help_seconds": best_seconds(program, "--help") - bare,
        "imported_modules": int(modules), "tensorflow": tensorflow == "True",
        "command": called(program, "optimise", MODEL, "--out", "x.onnx", "--seconds", "60", *threads, folder=folder),
        "library": called(python, "-c", LIBRARY, folder=folder),
        "validate": called(program, "validate", MODEL, "library.onnx", folder=folder),
        "search": called(program, "search", "--method", "beam", "--model", MODEL, "--out", "y.onnx", folder=folder),
        "bound": called(program, "bound", "--model", "tiny_resnet18", folder=folder),
    }  # fmt: skip


def table(figures: dict) -> str:
    rows = [
        ["`import rlflow`", f"{figures['import_seconds']:.2f} s above a bare start"],
        ["`rlflow --help`", f"{figures['help_seconds']:.2f} s above a bare start"],
        ["wheel", f"{figures['wheel_bytes'] / 1e6:.1f} MB"],
        ["all that is installed, without TensorFlow", f"{figures['bytes'] / 1e6:.0f} MB"],
    ]
    return markdown(["what", "how much"], rows)


def bars_of(figures: dict) -> list[dict]:
    common = sorted({"run", "run.py", "configs", "tests", "benchmarks"} & set(figures["site_packages"]))
    with_tensorflow = figures["tensorflow"] or "tensorflow" in figures["site_packages"]
    bars = [
        bar("import rlflow, above a bare start", figures["import_seconds"], "s", f"≤ {IMPORT_SECONDS}",
            figures["import_seconds"] <= IMPORT_SECONDS),
        bar("rlflow --help, above a bare start", figures["help_seconds"], "s", f"≤ {HELP_SECONDS}",
            figures["help_seconds"] <= HELP_SECONDS),
        bar("common names in site-packages", len(common), "", "0", not common),
        bar("TensorFlow is neither installed nor imported", not with_tensorflow, "", "true", not with_tensorflow),
    ]  # fmt: skip
    for name in ("command", "library", "validate", "search", "bound"):
        succeeded = figures[name]["status"] == 0
        bars.append(bar(f"installed without TensorFlow: {name}", succeeded, "", "true", succeeded))
    return bars


def main() -> int:
    parsed = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = installed(Path(folder))
    return finish("package", parsed, figures, bars_of(figures), by_rules=False)


if __name__ == "__main__":
    sys.exit(main())
