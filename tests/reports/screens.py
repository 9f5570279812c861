"""A headless browser that looks at the HTML report of a run, on a wide screen and on a phone.

It needs Chromium or Chrome, and `playwright` (the extra `nightly`).
"""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlflow.common.errors import RLFlowError

SCREENS = {"wide": (1200, 900), "phone": (390, 844)}  # pixels
# part that the first screen shows → its CSS selector
PARTS = {"the answer": "#answer", "the rewrites": "#rewrites", "a drawing": ".telling"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
COLOURS = 64  # number of colours of the picture

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
    """Yield a headless browser, or raise RLFlowError if the system has none."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise RLFlowError("looking at a page needs playwright: pip install 'rlflow[nightly]'") from error
    known = [path for path in map(shutil.which, BROWSERS) if path]
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=known[0] if known else None)
        except Error as error:
            raise RLFlowError("looking at a page needs Chromium: playwright install chromium") from error
        yield opened
        opened.close()


def look(opened, page: Path) -> dict[str, dict]:
    """Look at a page on every screen.

    Returns:
        For each screen: its width and height and `page_width` (pixels). `shown`: part of PARTS → True if the whole
        part is on the first screen. `cut_off`: elements that are wider than the screen or cut off, with all sections
        unfolded. `picture`: the first screen as PNG.
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
    """Return True if the box exists and the whole box is on the screen."""
    return bool(box) and 0 <= box["left"] < box["right"] <= width and 0 <= box["top"] < box["bottom"] <= height


def small(picture: bytes) -> bytes:
    """Return the picture as a PNG with few colours."""
    from PIL import Image

    result = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(COLOURS).save(result, format="png", optimize=True)
    return result.getvalue()
