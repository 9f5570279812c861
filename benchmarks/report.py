"""Is the HTML report of a run good to read? A headless browser looks at it, on a wide screen and on a phone.

    python -m benchmarks.report [--run runs/demo] [--picture docs/pictures/report.png]

The page is that of the run of `make demo`, which is made first where it has not ended; it is written anew by the code
of today. The first screen must show the answer, the grouped rewrites and one drawing; nothing may be wider than the
screen or cut off, with everything unfolded. --picture writes the first screen as the picture of the README.

Needs Chromium or Chrome, and `playwright` (the extra `test`).
"""

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import THREADS, bar, finish, markdown, parser
from rlflow.cli.outcome import write_up
from rlflow.cli.wiring import check_names
from rlflow.common.errors import RLFlowError
from rlflow.common.files import write_bytes
from rlflow.runs.folder import RunFolder

JUDGES = ("rlflow/reports", "rlflow/cli/outcome.py")

MODEL, CONFIG = "light_densenet121", "configs/demo.yaml"
SCREENS = {"wide": (1200, 900), "phone": (390, 844)}  # pixels
PARTS = {"the answer": "#answer", "the rewrites": "#rewrites", "a drawing": ".telling"}  # of the first screen
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
COLOURS, LARGEST_KB = 64, 150  # of the picture

BOX = """selector => {
  const box = document.querySelector(selector)?.getBoundingClientRect();
  return box && {left: box.left, top: box.top, right: box.right, bottom: box.bottom};
}"""
CUT_OFF = """() => {
  document.querySelectorAll('details').forEach(one => one.open = true);
  const beyond = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1;
  const screen = {left: 0, right: innerWidth}, wrong = [];
  for (const one of document.querySelectorAll('body, body *')) {
    const box = one.getBoundingClientRect();
    const spills = one instanceof HTMLElement && one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1;
    const clipped = one instanceof SVGTextElement && beyond(box, one.ownerSVGElement.getBoundingClientRect());
    if (beyond(box, screen) || spills || clipped) wrong.push(`${one.tagName}: ${one.textContent.slice(0, 60)}`);
  }
  return wrong;
}"""


@contextmanager
def browser() -> Iterator:
    """A headless one. Raises RLFlowError where there is none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise RLFlowError("looking at a page needs playwright: pip install 'rlflow[test]'") from error
    known = [path for path in map(shutil.which, BROWSERS) if path]
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=known[0] if known else None)
        except Error as error:
            raise RLFlowError("looking at a page needs Chromium: playwright install chromium") from error
        yield opened
        opened.close()


def look(opened, page: Path) -> dict[str, dict]:
    """What a reader sees of a page.

    Returns:
      screen → width and height of the screen and `page_width` (pixels), `shown` (part of PARTS → whether it lies on the
      first screen as a whole), `cut_off` (elements that are wider than the screen, or cut off, with all unfolded) and
      `picture` (the first screen as PNG).
    """
    seen = {}
    for name, (width, height) in SCREENS.items():
        tab = opened.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        picture = tab.screenshot()
        boxes = {part: tab.evaluate(BOX, selector) for part, selector in PARTS.items()}
        seen[name] = {
            "width": width, "height": height, "picture": picture,
            "shown": {part: on_screen(box, width, height) for part, box in boxes.items()},
            "cut_off": tab.evaluate(CUT_OFF),
            "page_width": tab.evaluate("document.scrollingElement.scrollWidth"),
        }  # fmt: skip
        tab.close()
    return seen


def on_screen(box: dict | None, width: int, height: int) -> bool:
    """Whether there is a box, and all of it lies on the screen."""
    return bool(box) and 0 <= box["left"] < box["right"] <= width and 0 <= box["top"] < box["bottom"] <= height


def made(folder: Path) -> Path:
    """The page of the run, written by the code of today."""
    if not (folder / "eval.json").exists():
        arguments = ["--config", CONFIG, "--run", str(folder), "--out", str(folder / "faster.onnx")]
        arguments += ["--threads", str(THREADS)]
        subprocess.run([sys.executable, "run.py", "optimise", MODEL, *arguments], check=True, stdout=sys.stderr)
    run = RunFolder.open(folder, check=check_names)
    write_up(run, run.require("eval"))
    return folder / "eval" / "report.html"


def small(picture: bytes) -> bytes:
    """The same with few colours, as PNG."""
    from PIL import Image

    result = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLOURS).save(result, format="png", optimize=True)
    return result.getvalue()


def bars_of(seen: dict[str, dict], picture: bytes) -> list[dict]:
    bars = []
    for name, result in seen.items():
        width, count = result["width"], sum(result["shown"].values())
        bars += [
            bar(f"{name}: width of the page", result["page_width"], "px", f"≤ {width}", result["page_width"] <= width),
            bar(f"{name}: too wide or cut off", len(result["cut_off"]), "elements", "0", not result["cut_off"]),
            bar(f"{name}: on the first screen", count, f"of {len(PARTS)}", "all", count == len(PARTS)),
        ]
    size = len(picture) / 1000
    return [*bars, bar("the picture", size, "kB", f"≤ {LARGEST_KB}", size <= LARGEST_KB)]


def table(figures: dict) -> str:
    rows = []
    for name, result in figures["screens"].items():
        shown = [part for part, inside in result["shown"].items() if inside]
        size = f"{result['width']} × {result['height']}"
        rows.append([name, size, ", ".join(shown), result["page_width"], len(result["cut_off"])])
    return markdown(["screen", "pixels", "shown at once", "width of the page", "cut off"], rows, words=3)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--run", type=Path, default="runs/demo", help="folder of a run; made where it has not ended")
    arguments.add_argument("--picture", type=Path, metavar="FILE.png", help="write the first screen there")
    parsed = arguments.parse_args()
    with browser() as opened:
        seen = look(opened, made(parsed.run))
        version = opened.version
    picture = small(seen["wide"].pop("picture"))
    seen["phone"].pop("picture")
    status = finish("report", parsed, {"browser": version, "screens": seen}, bars_of(seen, picture))
    if parsed.picture:
        write_bytes(parsed.picture, picture)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RLFlowError as error:
        sys.exit(f"error: {error}")
