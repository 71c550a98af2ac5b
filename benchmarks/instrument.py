"""What gcprof says of a step's bytes, held to plain PyTorch on the hollow device: `just bench-instrument`.

Each row is a step that gcprof rehearses, and the same step in a bare loop (`benchmarks.bare_loop`), whose checkpoints
are written by hand with torch.utils.checkpoint, in a process of its own. Peak, saved and reserved bytes are equal to
the byte, or the row's difference has a named cause; the run fails where one has none. Beside it stands how far the
estimate (fake tensors, as where there is no hollow device) is off. With `--layouts` the rows are modules of one
operator on inputs and gradients that are not contiguous. Writes its part of docs/tables/accuracy.md with -o.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Self

import msgspec

from benchmarks import Row, made, parser, record, resumed, table, write
from benchmarks.instrument_rows import LEFT_OUT, rows
from profiler.core.gpu_specs import FAKE, REHEARSE
from profiler.core.record import Record
from profiler.engines.local import Local

READINGS = ("peak_bytes", "saved_bytes", "reserved_bytes")
MOST_MINUTES = 60.0
MOVED = "as of a loop that makes the model on the host and moves it: one segment of small blocks is filled otherwise"
HOLES = (
    "the steps allocate and free the same, one by one; making the batch leaves other holes in segments of small blocks"
)
CAUSES = {  # of rows that differ in reserved bytes alone, by what stands in their words
    "hf:bart a100-40 bf16 sgd every:k=2": MOVED,
    "hf:bart rtx-4090 bf16 sgd own": MOVED,
    "llama b8 rtx-4090 fp32 momentum own": HOLES,
}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A row with what gcprof, the bare loop and the estimate say: bytes by reading, or why there are none."""

    row: Row
    rehearsed: dict[str, int] = {}
    truth: dict[str, int] = {}
    estimate: dict[str, int] = {}
    refused: str | None = None  # by gcprof
    failed: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all readings are equal to the byte."""
        return bool(self.truth) and all(self.rehearsed[name] == self.truth[name] for name in READINGS)

    @property
    def cause(self) -> str | None:
        """Why a row whose reserved bytes differ is known to differ."""
        if self.error("peak_bytes") or self.error("saved_bytes"):
            return None
        return next((cause for words, cause in CAUSES.items() if all(w in str(self.row) for w in words.split())), None)

    def error(self, name: str, *, of: str = "rehearsed") -> float:
        """The difference from the truth as a fraction of it; of saved bytes, as a fraction of the peak if larger."""
        said, truth = getattr(self, of)[name], self.truth[name]
        return (said - truth) / max(truth, self.truth["peak_bytes"] // 1000)


class BareLoop:
    """The process that runs bare loops, a fork for each row."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.bare_loop"]
        quiet = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | quiet
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def run(self, row: Row, *, sizes: Sequence[int] = (), segments: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """Return the bytes of the row's step; or the error that it raised, as `error`.

        `sizes` are those of the row's segments, if they are not of equal numbers; `segments` replace its strategy.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(
            msgspec.json.encode({**msgspec.to_builtins(row), "sizes": sizes, "segments": segments}) + b"\n"
        )
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or b'{"error": "the process died"}')
        return answer


def main() -> int:
    arguments = parser(__doc__, "rows in which all of these stand: hf: t4", minutes=MOST_MINUTES)
    arguments.add_argument("--rows", type=int, help="so many, spread over all")
    arguments.add_argument("--no-estimate", action="store_true", help="leave the estimate out")
    arguments.add_argument("--layouts", action="store_true", help="operators on other layouts")
    asked = arguments.parse_args()
    everything = layouts() if asked.layouts else rows()
    chosen = [row for row in everything if all(word in str(row) for word in asked.names)]
    random.Random(0).shuffle(chosen)  # so that a part of them is spread over all
    with BareLoop() as bare, engine(rehearses=True) as rehearsing, engine(rehearses=False) as plain:

        def found(row: Row) -> Judged:
            return judge(row, bare, rehearsing, None if asked.no_estimate else plain)

        judged = resumed(chosen[: asked.rows], Judged, asked, found, line)
    judged.sort(key=lambda one: everything.index(one.row))
    text = f"{made('instrument' + ' --layouts' * asked.layouts)}\n\n{_summary(judged)}\n"
    if not asked.layouts:
        text += "".join(f"- `{name}` is left out: {why}.\n" for name, why in LEFT_OUT.items()) + "\n"
        text += _by("model", judged, lambda row: row.model)
        text += _by("strategy", judged, lambda row: row.strategy.partition(":")[0])
    else:
        from benchmarks.layouts import LAYOUTS

        text += _by("layout", judged, lambda row: LAYOUTS[row.model.partition("layout=")[2]])
    text += _differing(judged)
    print(f"\n{text}")
    write(asked.output, "layouts" if asked.layouts else "rows", text)
    return int(any(one.failed or not (one.refused or one.is_exact or one.cause) for one in judged))


def layouts() -> list[Row]:
    """A row for each operator on each layout."""
    from benchmarks.layouts import LAYOUTS, OPERATORS  # with torch

    words = [f"benchmarks/layouts.py:make:op={op},layout={layout}" for op in OPERATORS for layout in LAYOUTS]
    return [Row(model=model, batch_size=8) for model in words]


def engine(*, rehearses: bool) -> Local:
    """An engine that rehearses steps, or one that estimates them."""
    return Local(stage_seconds=600.0, rehearses=rehearses, measures=rehearses)


def judge(row: Row, bare: BareLoop, rehearsing: Local, estimating: Local | None) -> Judged:
    """Rehearse the row, run its bare loop where it is not refused, and estimate it meanwhile."""
    with ThreadPoolExecutor() as pool:
        guess = pool.submit(record, estimating, row.case(FAKE + row.device)) if estimating else None
        rehearsed = record(rehearsing, row.case(REHEARSE + row.device))
        truth = bare.run(row, sizes=_sizes(rehearsed)) if rehearsed.outcome != "skipped" else {}
        estimated = guess.result() if guess else None
    if rehearsed.outcome == "skipped":
        return Judged(row=row, refused=rehearsed.detail)
    error = truth.get("error")
    if rehearsed.outcome != "ok" and error and error.partition(": ")[2][:40] in (rehearsed.detail or ""):
        return Judged(row=row, refused=f"plain PyTorch fails too: {rehearsed.detail}")
    failed = rehearsed.detail if rehearsed.outcome != "ok" else error
    if failed is None and rehearsed.built and rehearsed.built.num_blocks != truth.pop("num_blocks"):
        failed = f"the bare loop has other blocks than gcprof's {rehearsed.built.num_blocks}"
    if failed is not None:
        return Judged(row=row, failed=f"{rehearsed.outcome}: {failed}")
    is_estimated = estimated is not None and estimated.outcome == "ok"
    return Judged(row=row, rehearsed=_bytes(rehearsed), truth=truth, estimate=_bytes(estimated) if is_estimated else {})


def _bytes(found: Record | None) -> dict[str, int]:
    assert found is not None
    return {name: getattr(found.readings, name) or 0 for name in READINGS}


def _sizes(found: Record) -> list[int]:
    """The sizes of checkpointed segments where gcprof cuts by bytes, so that the loop cuts alike; else none."""
    if "balanced" not in str(found.case.strategy) or not found.built or not found.built.split:
        return []
    words = [word.partition("x") for word in found.built.split.split("+")[:-1]]
    return [size for count, x, last in words for size in ([int(last)] * int(count) if x else [int(count)])]


def line(one: Judged) -> str:
    """A judged row in words."""
    if one.failed or one.refused:
        return f"{'!' if one.failed else ' '} {one.failed or f'refused: {one.refused}'}  {one.row}"
    told = "exact" if one.is_exact else " ".join(f"{name[:5]} {one.error(name):+.3%}" for name in READINGS)
    guess = f"{one.error('peak_bytes', of='estimate'):+8.2%}" if one.estimate else "       -"
    return f"{' ' if one.is_exact else '*'} {told}  estimate {guess}  {one.row}"


def _summary(judged: Sequence[Judged]) -> str:
    held = [one for one in judged if one.truth]
    guesses = [abs(one.error("peak_bytes", of="estimate")) for one in held if one.estimate]
    exact, refused = sum(one.is_exact for one in held), sum(bool(one.refused) for one in judged)
    text = f"Of {len(judged)} rows {exact} are exact, {len(held) - exact} differ, {refused} are refused and"
    text += f" {sum(bool(one.failed) for one in judged)} failed."
    if guesses:
        text += f" The estimate's peak is off by {median(guesses):.2%} in the median and by {max(guesses):.1%} at worst"
        text += f" ({len(guesses)} rows)."
    return f"{text}\n"


def _by(factor: str, judged: Sequence[Judged], key: Callable[[Row], str]) -> str:
    lines = []
    for value in dict.fromkeys(key(one.row) for one in judged):
        own = [one for one in judged if key(one.row) == value]
        held = [one for one in own if one.truth]
        worst = [max((one.error(name) for one in held), key=abs, default=0.0) for name in READINGS]
        guesses = [one.error("peak_bytes", of="estimate") for one in held if one.estimate]
        cells = [f"{error:+.3%}" if error else "0" for error in worst]
        cells += [f"{median(map(abs, guesses)):.2%}", f"{max(guesses, key=abs):+.2%}"] if guesses else ["-", "-"]
        counts = len(own), sum(bool(one.refused) for one in own), sum(one.is_exact for one in held)
        lines.append((f"`{short(value)}`", *counts, *cells))
    head = f"{factor} | rows: | refused: | exact: | peak, worst: | saved: | reserved: | estimate, median: | worst:"
    return table(head, lines) + "\n"


def short(model: str) -> str:
    """A model's word, without options that make it too long for a table."""
    return model if len(model) < 60 else ":".join(model.split(":")[:2])


def _differing(judged: Sequence[Judged]) -> str:
    """The rows that differ, the farthest first, with their cause; and those that failed."""
    far = [one for one in judged if one.truth and not one.is_exact]
    far.sort(key=lambda one: -max(abs(one.error(name)) for name in READINGS))
    lines = []
    for one in far:
        row = one.row
        words = f"`{short(row.model)}`, {row.device}, {row.precision}, {row.optimizer}, `{row.strategy}`"
        lines.append((words, *(f"{one.error(reading):+.3%}" for reading in READINGS), one.cause or "not found"))
    text = table("differing row | peak: | saved: | reserved: | cause", lines)
    return text + "".join(f"\n- `{one.row}`: {one.failed}" for one in judged if one.failed)


if __name__ == "__main__":
    sys.exit(main())
