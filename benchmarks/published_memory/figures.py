"""Bytes that others measured and published, beside the same step rehearsed.

Fails where a figure is missed by more than 1 %, besides its own last digit, and the cause is not known; and where a
convolutional one is missed by more than rehearsed rows say. `-o` writes the table.
"""

import os
import tomllib
from collections.abc import Sequence
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
KEPT_WORKSPACES = "TORCH_CUBLAS_WORKSPACE_CACHE"  # 1: torch 2.15 keeps cuBLAS's workspaces, as those before it did
UNKNOWN = "**not found**"
OPEN = "open:"  # what a cause begins with that is not known, or not wholly
NUM_MISSES = 5  # convolutional figures whose causes are said
READINGS = {"peak": "peak_bytes", "reserved": "reserved_bytes"}
FOLDER = Path(__file__).parent
UNITS = {"MiB": MIB, "GiB": GIB, "GB": 1e9}
SOURCES: dict[str, Any] = tomllib.loads((FOLDER / "figures.toml").read_text(encoding="utf-8"))
TEXTS = SOURCES.pop("texts")
HEAD = "what | GPU, torch | reading | published, MiB: | rehearsed: | error: | blind | cause"


class Figure(Row, frozen=True, kw_only=True):
    """One published number, and the step that it is of."""

    source: str  # a key of SOURCES
    name: str
    gpu: str  # as published
    torch: str
    published: float  # in the unit of its source
    reading: str = "peak"  # a key of READINGS
    within: float = 0.0  # half of the last digit that was published
    keeps_gradients: bool = False  # from one step to the next
    is_convolutional: bool = False
    corrected: str | None = None  # what was wrong in the first rebuilding; None: it was met, or missed, blind
    cause: str | None = None  # of an error beyond the bounds; shown only there
    workspace_cause: str | None = None  # of a convolutional one that is among the largest misses; shown only there

    @property
    def nbytes(self) -> int:
        return self.to_bytes(self.published)

    def to_bytes(self, number: float) -> int:
        """Return a number of the source's unit in bytes."""
        return round(number * UNITS[SOURCES[self.source]["unit"]])


def figures() -> list[Figure]:
    """Every figure, in the order of the table."""
    whole = [{"source": key, **source["of"], **row} for key, source in SOURCES.items() for row in source["rows"]]
    given = [{name: TEXTS.get(value, value) for name, value in fields.items()} for fields in whole]
    return [Figure(**{**fields, "model": f"benchmarks/published_memory/{fields['model']}"}) for fields in given]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside its rehearsal."""

    figure: Figure
    nbytes: int | None  # rehearsed
    failed: str = ""
    unplanned: int | None = None  # of a convolutional one, rehearsed without workspaces of cuDNN

    def missed(self, nbytes: int | None) -> float:
        """The error of rehearsed bytes as a fraction of the published ones; infinite where there are none."""
        return float("inf") if nbytes is None else nbytes / self.figure.nbytes - 1

    @property
    def error(self) -> float:
        """The size of the error, less what the last digit of the published bytes leaves open."""
        within = self.figure.to_bytes(self.figure.within) / self.figure.nbytes
        return max(abs(self.missed(self.nbytes)) - within, 0.0)

    @property
    def is_beyond(self) -> bool:
        """Whether the rehearsal misses the figure by more than the bound."""
        return self.error > BOUND

    @property
    def is_as_said(self) -> bool:
        """Whether a convolutional figure is missed by no more than the notes of rehearsed rows say."""
        pairs = ((self.nbytes, PLANNED_OFF), (self.unplanned, UNPLANNED_OFF))
        return self.unplanned is None or all(
            least <= round(self.missed(nbytes), 3) <= most for nbytes, (least, most) in pairs
        )

    @property
    def cells(self) -> tuple[str, ...]:
        figure, within = self.figure, self.figure.to_bytes(self.figure.within)
        return (
            figure.name,
            f"{figure.gpu}, {figure.torch}",
            figure.reading,
            f"{figure.nbytes / MIB:,.2f}" + (f" ± {within / MIB:,.2f}" if within else ""),
            *(("-", "-") if self.nbytes is None else (f"{self.nbytes / MIB:,.2f}", f"{self.missed(self.nbytes):+.2%}")),
            f"no: {figure.corrected}" if figure.corrected else "yes",
            (figure.cause or UNKNOWN) if self.is_beyond else "",
        )


def main() -> int:
    asked = parser(__doc__, "only figures whose name or source holds one of these").parse_args()
    os.environ[KEPT_WORKSPACES] = "1"
    held = []
    os.environ[PLANS] = "hollow"  # a server reads it as it starts
    with Local(rehearses=True) as unplanned:
        del os.environ[PLANS]
        with Local(rehearses=True) as engine:
            for figure in figures():
                words = f"{figure.source} {figure.name} {figure.gpu}"
                if not asked.names or any(word in words for word in asked.names):
                    held.append(hold(figure, engine, unplanned))
                    print(*held[-1].cells, held[-1].failed, sep=" | ", flush=True)
    print(_summary(held))
    write(asked.output, "figures", document(held))
    write(asked.output, "convolutions", _convolutions([one for one in held if one.figure.is_convolutional]))
    outside = [one.figure.name for one in held if not one.is_as_said]
    if outside:
        print(f"missed by more than PLANNED_OFF and UNPLANNED_OFF say: {', '.join(outside)}")
    return int(bool(outside) or any(one.is_beyond and not one.figure.cause for one in held))


def hold(figure: Figure, engine: Local, unplanned: Local) -> Held:
    """Returns the figure beside its rehearsals."""
    case = figure.case(f"rehearse:{figure.device}", keep_gradients=figure.keeps_gradients)
    found = record(engine, case)
    return Held(
        figure=figure,
        nbytes=getattr(found.readings, READINGS[figure.reading]),
        failed="" if found.outcome == "ok" else f"{found.outcome}: {found.detail}",
        unplanned=record(unplanned, case).readings.peak_bytes if figure.is_convolutional else None,
    )


def _summary(held: Sequence[Held]) -> str:
    errors = sorted(one.error for one in held)
    beyond = [one.figure for one in held if one.is_beyond]
    exact = sum(one.nbytes == one.figure.nbytes for one in held)
    unexplained = sum((figure.cause or OPEN).startswith(OPEN) for figure in beyond)
    blind = sum(not one.figure.corrected and not one.is_beyond for one in held)
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
