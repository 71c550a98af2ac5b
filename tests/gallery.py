"""Every picture of the README and the docs, by the commands that draw them: writes docs/gallery and a part of a page.

Run it as `python -m tests.gallery`; with words, only the pictures whose names hold one of them are drawn anew.
"""

import hashlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import msgspec
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from profiler.cli import answer

ROOT = Path(__file__).parent.parent
PAGE, FOLDER = ROOT / "docs" / "results.md", ROOT / "docs" / "gallery"
BEGIN = "<!-- gallery -->\n"
WIDTH, COLOURS = 1200, 255  # pixels, and how many colours they have: small enough for a page of many
DRAWN_FROM = "drawn from"  # the field of a PNG that has the SHA-256 of its SVG, or of its page
SCREEN = 1280, 1000  # pixels
MEASURED = "ref:cpu/mnist-cnn"
BATCHES = "ref:predicted-t4/transformer-batches"
DEPTHS = "ref:predicted-t4/cifar-resnet-depths"
RANKS = "ref:predicted-h100/llama-70b-ranks"


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One picture: what it is called, the command that draws it, and what one sees."""

    name: str
    command: str
    title: str
    about: str

    @property
    def words(self) -> list[str]:
        """The command, but for `gcprof`."""
        return shlex.split(self.command)[1:]


def plot(run: str, kind: str, more: str = "", *, name: str | None = None, title: str, about: str) -> Picture:
    name = name or kind
    extra = f" {more}" if more else ""
    command = f"gcprof plot {run} --kind {kind}{extra} -o {name}.png"
    return Picture(name=name, command=command, title=title, about=about)


PICTURES = (
    plot(
        MEASURED, "frontier", title="Memory against time",
        about="What each strategy saves and what it costs. Below the line came none; hollow points are beaten, and "
        "the faint bars are the intervals of the times.",
    ),
    plot(
        MEASURED, "memory", title="What a peak is made of",
        about="The static memory that no checkpointing passes, what the forward saves, and what comes and goes.",
    ),
    plot(
        MEASURED, "time", title="What a step takes",
        about="Forward, backward with its recomputation, optimizer; the dot is the median of the whole step.",
    ),
    plot(
        MEASURED, "samples", title="Every sample",
        about="Drift, outliers and noise as they were: no sample is dropped.",
    ),
    plot(
        BATCHES, "heat", title="The peak over two axes",
        about="A list on an option is an axis. The black line is where the device's memory ends; what ran out of it is "
        "crossed.",
    ),
    plot(
        DEPTHS, "heat", "--over depth,batch_size", name="heat-depth", title="... over axes that are named",
        about="A panel for each value of the others, here the strategies; one colour is one peak in all of them.",
    ),
    plot(
        BATCHES, "growth", title="How the peak grows",
        about="Logarithmic axes. At each name the nearest growth, a constant beside a slope or a power, with its "
        "largest error: the constant is what no batch changes, the slope what a sample takes.",
    ),
    plot(
        DEPTHS, "growth", "--over depth", name="growth-depth", title="... with an option of the model",
        about="The square root is seen in what sqrt saves.",
    ),
    plot(
        RANKS, "growth", "--over ranks", name="growth-ranks", title="... with the ranks that share a model",
        about="Llama-70B over FSDP2, predicted for one of the ranks. The static bytes fall as the ranks grow; the peak "
        "comes to rest on activations and on what a rank gathers of the others.",
    ),
    plot(
        BATCHES, "throughput", title="Samples a second at equal memory",
        about="A line a strategy through its batches. Go up from a budget to the grey stairs, then left to the mark "
        "where the step begins: that strategy and batch give the most.",
    ),
    Picture(
        name="timeline", title="A step over time",
        command="gcprof timeline mnist-cnn:channels=32 --device cpu --strategies none,segments:k=8 -o timeline.png",
        about="What is live at every operator, by category, with the phases and the peak. Nothing is run.",
    ),
    Picture(
        name="plans", title="Every plan that no other beats",
        command="gcprof plan torchvision:resnet50 --batch-size 16 --device fake:t4 --frontier -o plans.png",
        about="Beside what one would pick instead: uniform splits, the first N blocks, every j-th.",
    ),
    plot(
        BATCHES, "growth", "--style slides", name="slides", title="For slides",
        about="`--style slides`: 16:9, 1920 pixels wide, larger type. For every kind.",
    ),
    plot(
        BATCHES, "heat", "--style paper", name="paper", title="For papers",
        about="`--style paper`: one column wide, small type, colours that are told apart in grey. Without `-o` it is a "
        "PDF with its fonts embedded.",
    ),
)  # fmt: skip


REPORT = Picture(
    name="report", title="The first screen of a report", command=f"gcprof report {MEASURED} -o report.html",
    about="Shown where the report is explained.",
)  # fmt: skip


def main(words: Sequence[str]) -> None:
    """Draw the pictures whose names hold one of the words, and write the page."""
    FOLDER.mkdir(exist_ok=True)
    for picture in (*PICTURES, REPORT):
        if not words or any(word in picture.name for word in words):
            png = photographed(source(picture)) if picture is REPORT else drawn(picture, "png")
            (FOLDER / f"{picture.name}.png").write_bytes(small(png, digest=digest(picture)))
    PAGE.write_text(page(), encoding="utf-8")


def drawn(picture: Picture, suffix: str) -> bytes:
    """What the command writes for this suffix, drawn elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"picture.{suffix}"
        code = answer([*picture.words[:-1], str(path)])
        assert code == 0, f"{picture.command} ended with {code}"
        return path.read_bytes()


def source(picture: Picture) -> bytes:
    """The page or the lines that a picture is made of, the same whenever it is drawn by the same code."""
    return drawn(picture, "html" if picture is REPORT else "svg")


def digest(picture: Picture) -> str:
    return hashlib.sha256(source(picture)).hexdigest()


def stored_digest(picture: Picture) -> str | None:
    """The digest of what the stored picture was made of."""
    return Image.open(FOLDER / f"{picture.name}.png").info.get(DRAWN_FROM)


def photographed(html: bytes) -> bytes:
    """The first screen of a page."""
    from playwright.sync_api import sync_playwright

    program = next(found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        (Path(folder) / "report.html").write_bytes(html)
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]}, color_scheme="light")
        page.goto((Path(folder) / "report.html").as_uri())
        png = page.screenshot()
        browser.close()
    return png


def small(png: bytes, *, digest: str) -> bytes:
    """The picture with fewer pixels and colours, and the digest of what it is made of."""
    found = Image.open(BytesIO(png)).convert("RGB")
    if found.width > WIDTH:
        found = found.resize((WIDTH, round(found.height * WIDTH / found.width)), Image.Resampling.LANCZOS)
    text = BytesIO()
    said = PngInfo()
    said.add_text(DRAWN_FROM, digest)
    few = found.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(text, format="PNG", optimize=True, pnginfo=said)
    return text.getvalue()


def page() -> str:
    """The page with its part on the pictures."""
    parts = [PAGE.read_text(encoding="utf-8").partition(BEGIN)[0] + BEGIN]
    for one in PICTURES:
        parts += [f"### {one.title}", "", "```", one.command, "```", "", one.about, ""]
        parts += [f"![{one.title}](gallery/{one.name}.png)", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    main(sys.argv[1:])
