"""Draws every picture of the README and the docs into docs/gallery, by the commands that docs/results.md shows.

Run it as `python -m tests.gallery`; with words, only the pictures whose names hold one of them are drawn anew.
"""

import hashlib
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from profiler.cli import answer

ROOT = Path(__file__).parent.parent
PAGE, FOLDER = ROOT / "docs" / "results.md", ROOT / "docs" / "gallery"
WIDTH, COLOURS = 1200, 255  # pixels, and how many colours they have: small enough for a page of many
DRAWN_FROM = "drawn from"  # the field of a PNG that has the SHA-256 of its SVG, or of its page
SCREEN = 1280, 1000  # pixels
REPORT = "report"  # the picture that is the first screen of a page

# a picture's name -> its command, but for `gcprof` and the file that it writes
COMMAND = re.compile(r"^```\ngcprof (.*) -o ([\w-]+)\.png\n```$", re.MULTILINE)
PICTURES = {name: shlex.split(words) for words, name in COMMAND.findall(PAGE.read_text(encoding="utf-8"))}
PICTURES[REPORT] = ["report", "ref:cpu/mnist-cnn"]


def main(words: Sequence[str]) -> None:
    """Draw the pictures whose names hold one of the words."""
    for name in PICTURES:
        if not words or any(word in name for word in words):
            png = photographed(source(name)) if name == REPORT else drawn(name, "png")
            (FOLDER / f"{name}.png").write_bytes(small(png, digest=digest(name)))


def drawn(name: str, suffix: str) -> bytes:
    """What the command writes for this suffix, drawn elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"picture.{suffix}"
        code = answer([*PICTURES[name], "-o", str(path)])
        assert code == 0, f"{name} ended with {code}"
        return path.read_bytes()


def source(name: str) -> bytes:
    """The page or the lines that a picture is made of, the same whenever it is drawn by the same code."""
    return drawn(name, "html" if name == REPORT else "svg")


def digest(name: str) -> str:
    return hashlib.sha256(source(name)).hexdigest()


def stored_digest(name: str) -> str | None:
    """The digest of what the stored picture was made of."""
    return Image.open(FOLDER / f"{name}.png").info.get(DRAWN_FROM)


def photographed(html: bytes) -> bytes:
    """The first screen of a page."""
    from playwright.sync_api import sync_playwright

    program = next(found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name)))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]}, color_scheme="light")
        page.set_content(html.decode())
        return page.screenshot()


def small(png: bytes, *, digest: str) -> bytes:
    """The picture with fewer pixels and colours, and the digest of what it is made of."""
    found, text, said = Image.open(BytesIO(png)).convert("RGB"), BytesIO(), PngInfo()
    if found.width > WIDTH:
        found = found.resize((WIDTH, round(found.height * WIDTH / found.width)), Image.Resampling.LANCZOS)
    said.add_text(DRAWN_FROM, digest)
    few = found.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(text, format="PNG", optimize=True, pnginfo=said)
    return text.getvalue()


if __name__ == "__main__":
    main(sys.argv[1:])
