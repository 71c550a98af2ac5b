"""Which of the ways to fit a memory fit it, and how much longer a step then takes: `just bench-fit`.

Nine steps on a rehearsed H100, each with a limit of what the allocator reserves. `gcprof fit` is held to checkpoints
of every block with levers added by their cost, to saved tensors on the host (save_on_cpu), and to a compiled budget.
Bytes are rehearsed; times are the estimate for the GPU. Writes results/fit/fit.md and fit.jsonl.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks import keep, kept, made, parser, spent, table
from profiler.analysis.rows import rows as read_rows
from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.core.units import bytes_text
from profiler.request.spec import Request
from profiler.training import levers
from profiler.workflows.fit import FitRequest, fit
from profiler.workflows.stages import ModelOnDevice

DEVICE, SHARE = "h100", 0.4
FILE = "benchmarks/fit_models.py"
LLAMA = "hf:llama:sequence=2048,vocab_size=128256,hidden_size=2048,intermediate_size=8192,num_hidden_layers=16"
LLAMA += ",num_attention_heads=32,num_key_value_heads=8,tie_word_embeddings=True"  # Llama 3.2 1B
FOLDER = Path("results/fit")
GIB = 1 << 30
BUDGETS = (0.75, 0.5, 0.25)  # of a compiled budget besides 0, the largest that fits
LADDER = ("chunk-loss", "fused", "offload-inputs", "in-backward", *(f"micro-batches:n={n}" for n in (2, 4, 8)))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A training step, and the limit of what its allocator reserves."""

    name: str
    model: str
    batch_size: int
    precision: str = "fp32"
    optimizer: str = "adamw"
    limit_gib: float | None = None  # None: SHARE of what it reserves as it is

    @property
    def words(self) -> Request:
        return Request(
            model=self.model, batch_size=str(self.batch_size), precision=self.precision, optimizer=self.optimizer,
            strategies="none", device=f"rehearse:{DEVICE}",
        )  # fmt: skip


STEPS = (
    Step(name="GPT-2", model="hf:gpt2:sequence=1024", batch_size=8, precision="amp-bf16", limit_gib=4.5),
    Step(name="Llama-1B", model=LLAMA, batch_size=4, precision="bf16", limit_gib=12),
    Step(name="BERT-base", model="hf:bert:sequence=128", batch_size=64, precision="amp-bf16", limit_gib=2.2),
    Step(name="ViT-L", model="timm:vit_large_patch16_224", batch_size=32, precision="amp-bf16", limit_gib=4.4),
    Step(name="ResNet-50", model="torchvision:resnet50", batch_size=64, optimizer="momentum", limit_gib=2.8),
    Step(name="MNIST CNN", model="mnist-cnn:channels=320", batch_size=64, optimizer="sgd", limit_gib=0.85),
    Step(name="LSTM", model=f"{FILE}:lstm", batch_size=64),
    Step(name="U-Net", model=f"{FILE}:unet", batch_size=32),
    Step(name="MoE", model=f"{FILE}:moe", batch_size=16, precision="amp-bf16"),
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one way does with one step."""

    way: str
    label: str  # the strategy with its levers, or why there is none
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    time_ratio: float | None = None  # to the step as it is, estimated for the GPU
    fits: bool = False
    took_seconds: float = 0.0


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """One step under its limit, by each way; the first is the step as it is, the second gcprof's."""

    name: str
    model: str
    batch_size: int
    precision: str
    limit_bytes: int
    results: tuple[Result, ...]
    floor_bytes: int | None = None  # if gcprof finds no way: what any of its plans needs at least


def main() -> int:
    arguments = parser(__doc__, "of steps")
    arguments.add_argument("--one", help="run one step in this process, and print it as JSON")
    arguments.add_argument("--no-compiled", action="store_true", help="leave the compiled budget out: it takes minutes")
    asked = arguments.parse_args()
    if asked.one:
        (step,) = (step for step in STEPS if step.name == asked.one)
        sys.stdout.buffer.write(msgspec.json.encode(judged(step, compiles=not asked.no_compiled)))
        return 0
    folder = asked.output or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    known = {one.name: one for one in kept(folder / "fit.jsonl", Fits)}
    for step in STEPS:
        if not asked.names or step.name in asked.names:
            command = [sys.executable, "-m", "benchmarks.fit", "--one", step.name]
            done = spent([*command, *(["--no-compiled"] if asked.no_compiled else [])], stderr=None)
            known[step.name] = msgspec.json.decode(done.output, type=Fits)
            keep(folder / "fit.jsonl", known[step.name])
            (folder / "fit.md").write_text(_page([known[step.name] for step in STEPS if step.name in known]))
            print(_line(known[step.name]), flush=True)
    return int(not all(one.results[1].fits for one in known.values()))


def judged(step: Step, *, compiles: bool) -> Fits:
    """Run the step by each way."""
    with ModelOnDevice(step.words) as model:
        rivals = Rivals(model)
        none = rivals.record("none")
        limit = int(step.limit_gib * GIB if step.limit_gib else SHARE * (none.readings.reserved_bytes or 0))
        results = [rivals.result("as it is", "none", limit)]
        results += [rivals.result("all", "all", limit), rivals.result("save_on_cpu", "offload", limit)]
        results += [rivals.compiled(limit)] if compiles else []
        results.append(rivals.greedy(limit))
    ours, floor = _ours(step, limit)
    return Fits(
        name=step.name, model=step.model, batch_size=step.batch_size, precision=step.precision, limit_bytes=limit,
        results=(results[0], ours, *results[1:]), floor_bytes=floor,
    )  # fmt: skip


def _ours(step: Step, limit: int) -> tuple[Result, int | None]:
    """Return the way that `gcprof fit` chooses; or what the least of its rows needs, and the floor that it proves."""
    began = time.monotonic()
    words = msgspec.structs.replace(step.words, model=step.model.replace(FILE, str(Path(FILE).resolve())))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fitted = fit(FitRequest(words=words, limit=limit, context_bytes=0))
    took = time.monotonic() - began
    row = fitted.chosen or min(fitted.rows, key=lambda row: fitted.needed_bytes(row) or 1 << 62)
    label = str(row.case.label) if row.case.strategy.name != "plan" else "+".join(["plan", *row.case.label.parts[1:]])
    plan = f" {fitted.plan.plan}" if fitted.plan else ""
    result = Result(
        way="gcprof fit", label=label + plan, reserved_bytes=row.readings.reserved_bytes,
        peak_bytes=row.readings.peak_bytes, time_ratio=row.time_ratio, fits=fitted.chosen is not None,
        took_seconds=took,
    )  # fmt: skip
    return result, min(fitted.floors.values(), default=None)


class Rivals:
    """Runs the step under labels, each once."""

    def __init__(self, model: ModelOnDevice) -> None:
        self._model, self._run = model, dict[str, Record]()

    def record(self, label: str) -> Record:
        if label not in self._run:
            case = self._model.case.under(levers.resolved(Choice(label)))
            trial = Trial(case=case, passes=schedule.REHEARSED_PASSES)
            (self._run[label],) = self._model.engine.run([trial])
        return self._run[label]

    def result(self, way: str, label: str, limit: int) -> Result:
        record = self.record(label)
        if record.outcome != "ok":
            return Result(way=way, label=f"{label}: {record.outcome}: {record.detail}")
        (row,) = (row for row in read_rows([self.record("none"), record]) if row.case == record.case)
        reserved = record.readings.reserved_bytes
        return Result(
            way=way, label=label, reserved_bytes=reserved, peak_bytes=record.readings.peak_bytes,
            time_ratio=row.time_ratio, fits=reserved is not None and reserved <= limit,
        )  # fmt: skip

    def compiled(self, limit: int) -> Result:
        """Return the step with the largest compiled budget that fits, else with the smallest."""
        way, word = "compiled budget", "compile-budget:budget="
        least = self.result(way, f"{word}0.0", limit)
        tried = (self.result(way, f"{word}{budget}", limit) for budget in BUDGETS if least.fits)
        return next((result for result in tried if result.fits), least)

    def greedy(self, limit: int) -> Result:
        """Return `all` with levers added by their cost, each if it lowers reserved bytes, until it fits."""
        result = self.result("all + levers by cost", "all", limit)
        for lever in LADDER:
            if result.fits or not result.reserved_bytes:
                break
            parts = [part for part in result.label.split("+") if part.split(":")[0] != lever.split(":")[0]]
            with contextlib.suppress(UserError):  # in-backward with micro-batches
                more = self.result(result.way, str(levers.resolved(Choice("+".join([*parts, lever])))), limit)
                if more.reserved_bytes and more.reserved_bytes < result.reserved_bytes:
                    result = more
        return result


def _page(steps: list[Fits]) -> str:
    rows = []
    for one in steps:
        for place, result in enumerate(one.results):
            name = f"{one.name}, {one.batch_size}, {one.precision}" if not place else ""
            limit = bytes_text(one.limit_bytes) if not place else ""
            cells = (name, limit, result.way, result.label, bytes_text(result.reserved_bytes), _more(result))
            rows.append((*cells, "yes" if result.fits else "no"))
    text = f"# What fits\n\n{made('fit')} On a rehearsed {DEVICE.upper()}. Limits are of what the allocator reserves.\n"
    text += "Bytes are rehearsed; times are estimated for the GPU, and none are measured.\n\n"
    return f"{text}{table('step | limit: | way | with | reserved: | time: | fits', rows)}\n{_summary(steps)}"


def _summary(steps: list[Fits]) -> str:
    """Return how many steps each way fits, and our extra time beside that of the fastest other way that fits."""
    ways = list(dict.fromkeys(result.way for one in steps for result in one.results[1:]))
    fitting = {way: sum(result.way == way and result.fits for one in steps for result in one.results) for way in ways}
    text = f"Of {len(steps)} steps " + ", ".join(f"{way} fits {number}" for way, number in fitting.items()) + ".\n\n"
    shares = []
    for one in steps:
        ours, *others = one.results[1:]
        extra = [result.time_ratio - 1 for result in others if result.fits and result.time_ratio is not None]
        if ours.fits and ours.time_ratio is not None and extra and min(extra) > 0:
            shares.append((ours.time_ratio - 1) / min(extra))
            text += f"- {one.name}: gcprof {ours.time_ratio - 1:+.1%}, the fastest other that fits {min(extra):+.1%}\n"
    mean = f"On average that is {fmean(shares):.0%} of the other's extra time" if shares else "No other has a time"
    text += "\nWith inputs in host memory, our time has each stage's waits, the others' the copies of a phase as one.\n"
    return f"{text}{mean}, as estimated for the GPU; no time is measured here.\n"


def _line(one: Fits) -> str:
    ways = "; ".join(
        f"{result.way} {'fits' if result.fits else 'no'} {bytes_text(result.reserved_bytes)} {_more(result)}".rstrip()
        for result in one.results
    )
    return f"{one.name} in {bytes_text(one.limit_bytes)}: {ways}; gcprof took {one.results[1].took_seconds:.0f} s"


def _more(result: Result) -> str:
    return "" if result.time_ratio is None else f"{result.time_ratio - 1:+.1%}"


if __name__ == "__main__":
    sys.exit(main())
