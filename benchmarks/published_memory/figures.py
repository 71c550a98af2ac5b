"""Bytes that others measured and published, beside the same step rehearsed.

Fails where a figure is missed by more than 1 %, besides its own last digit, and the cause is not known; and where a
convolutional one is missed by more than rehearsed rows say. `-o` writes the table.
"""

import os
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks import Row, made, parser, record, table, write
from profiler.core.units import GIB, MIB
from profiler.engines.local import Local
from profiler.rehearsal.device import PLANNED_OFF, UNPLANNED_OFF
from profiler.rehearsal.loader import PLANS

BOUND = 0.01
UNKNOWN = "**not found**"
OPEN = "open:"  # what a cause begins with that is not known, or not wholly
NUM_MISSES = 5  # convolutional figures whose causes are said
UNITS = {"MiB": MIB, "GiB": GIB, "GB": 1e9}
SOURCES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("figures.toml").read_text(encoding="utf-8"))
TEXTS = SOURCES.pop("texts")
HEAD = "what | GPU, torch | reading | published, MiB: | rehearsed: | error: | blind | cause"


class Figure(Row, frozen=True, kw_only=True):
    """One published number, and the step that it is of."""

    source: str  # a key of SOURCES
    name: str
    gpu: str  # as published
    torch: str
    nbytes: int  # as published
    reading: str = "peak"  # or reserved
    within: int = 0  # bytes: half of the last digit that was published
    keeps_gradients: bool = False  # from one step to the next
    is_convolutional: bool = False
    corrected: str | None = None  # what was wrong in the first rebuilding; None: it was met, or missed, blind
    cause: str | None = None  # of an error beyond the bounds; shown only there
    workspace_cause: str | None = None  # of a convolutional one that is among the largest misses; shown only there


def figures() -> Iterator[Figure]:
    """Every figure, in the order of the table."""
    for key, source in SOURCES.items():
        for row in source["rows"]:
            fields = {name: TEXTS.get(value, value) for name, value in {"within": 0, **source["of"], **row}.items()}
            nbytes, within = (round(fields.pop(name) * UNITS[source["unit"]]) for name in ("published", "within"))
            model = f"benchmarks/published_memory/{fields.pop('model')}"
            yield Figure(source=key, model=model, nbytes=nbytes, within=within, **fields)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside its rehearsal."""

    figure: Figure
    nbytes: int | None  # rehearsed
    unplanned: int | None = None  # of a convolutional one, rehearsed without workspaces of cuDNN

    def missed(self, nbytes: int | None) -> float:
        """The error of rehearsed bytes as a fraction of the published ones; infinite where there are none."""
        return float("inf") if nbytes is None else nbytes / self.figure.nbytes - 1

    @property
    def error(self) -> float:
        """The size of the error, less what the last digit of the published bytes leaves open."""
        return max(abs(self.missed(self.nbytes)) - self.figure.within / self.figure.nbytes, 0.0)

    @property
    def is_as_said(self) -> bool:
        """Whether a convolutional figure is missed by no more than the notes of rehearsed rows say."""
        pairs = ((self.nbytes, PLANNED_OFF), (self.unplanned, UNPLANNED_OFF))
        return self.unplanned is None or all(
            least <= round(self.missed(nbytes), 3) <= most for nbytes, (least, most) in pairs
        )

    @property
    def cells(self) -> tuple[str, ...]:
        figure, rehearsed, error = self.figure, "-", "-"
        published = f"{figure.nbytes / MIB:,.2f}" + (f" ± {figure.within / MIB:,.2f}" if figure.within else "")
        if self.nbytes is not None:
            rehearsed, error = f"{self.nbytes / MIB:,.2f}", f"{self.missed(self.nbytes):+.2%}"
        blind = f"no: {figure.corrected}" if figure.corrected else "yes"
        cause = (figure.cause or UNKNOWN) if self.error > BOUND else ""
        return figure.name, f"{figure.gpu}, {figure.torch}", figure.reading, published, rehearsed, error, blind, cause


def main() -> int:
    asked = parser(__doc__, "only figures whose name or source holds one of these").parse_args()
    os.environ["TORCH_CUBLAS_WORKSPACE_CACHE"] = "1"  # torch 2.15 keeps cuBLAS's workspaces, as those before it did
    held = []
    os.environ[PLANS] = "hollow"  # a server reads it as it starts
    with Local(rehearses=True) as unplanned:
        del os.environ[PLANS]
        with Local(rehearses=True) as engine:
            for figure in figures():
                words = f"{figure.source} {figure.name} {figure.gpu}"
                if asked.names and not any(word in words for word in asked.names):
                    continue
                case = figure.case(f"rehearse:{figure.device}", keep_gradients=figure.keeps_gradients)
                found = record(engine, case)
                nbytes = getattr(found.readings, f"{figure.reading}_bytes")
                without = record(unplanned, case).readings.peak_bytes if figure.is_convolutional else None
                held.append(one := Held(figure=figure, nbytes=nbytes, unplanned=without))
                failed = "" if found.outcome == "ok" else f"{found.outcome}: {found.detail}"
                print(*one.cells, failed, sep=" | ", flush=True)
    print(_summary(held))
    write(asked.output, "figures", document(held))
    write(asked.output, "convolutions", _convolutions([one for one in held if one.figure.is_convolutional]))
    outside = [one.figure.name for one in held if not one.is_as_said]
    if outside:
        print(f"missed by more than PLANNED_OFF and UNPLANNED_OFF say: {', '.join(outside)}")
    return int(bool(outside) or any(one.error > BOUND and not one.figure.cause for one in held))


def _summary(held: Sequence[Held]) -> str:
    errors = sorted(one.error for one in held)
    beyond = [one.figure for one in held if one.error > BOUND]
    exact = sum(one.nbytes == one.figure.nbytes for one in held)
    unexplained = sum((figure.cause or OPEN).startswith(OPEN) for figure in beyond)
    blind = sum(not one.figure.corrected and one.error <= BOUND for one in held)
    return (
        f"- {len(held) - len(beyond)} of {len(held)} within {BOUND:.0%}, median error {median(errors):.3%}, worst"
        f" {errors[-1]:.2%}, {exact} to the byte\n- {len(beyond)} beyond; the cause of {unexplained} of them is open\n"
        f"- {blind} met blind; {sum(one.figure.is_convolutional for one in held)} convolutional"
    )


def document(held: Sequence[Held]) -> str:
    """Returns the tables, one for each source."""
    cudnn = next(wheel.version for wheel in distributions() if wheel.name.startswith("nvidia-cudnn-"))
    versions = made("published_memory.figures").replace(" and torch", ", torch").removesuffix(".")
    text = f"{versions} and cuDNN {cudnn}.\n\n{_summary(held)}\n\n"
    for key, source in SOURCES.items():
        if own := [one.cells for one in held if one.figure.source == key]:
            url = source["url"]
            text += f"## {source['title']}\n\n[{url}]({url}): {source['says']}.\n\n{table(HEAD, own)}\n"
    return text


def _convolutions(held: Sequence[Held]) -> str:
    """Returns the errors of convolutional figures with and without cuDNN's workspaces, the largest first."""
    rows = [
        (
            f"{one.figure.name}, {one.figure.gpu}",
            *(f"{one.missed(nbytes):+.2%}" for nbytes in (one.unplanned, one.nbytes)),
            (one.figure.workspace_cause or UNKNOWN) if rank < NUM_MISSES else "",
        )
        for rank, one in enumerate(sorted(held, key=lambda one: -abs(one.missed(one.nbytes))))
    ]
    return table("what | without: | with cuDNN's plans: | cause", rows)
