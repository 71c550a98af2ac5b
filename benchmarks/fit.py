"""Which of the ways to fit a memory fit it, and how much longer a step then takes: `just bench-fit`.

Nine steps and a script on a rehearsed H100, each with a limit of what the allocator reserves. `gcprof fit` is held to
checkpoints of every block with levers added by their cost, to saved tensors on the host (save_on_cpu), to a compiled
budget, and to PyTorch's sac_milp. Bytes are rehearsed; times are the estimate for the GPU. Writes results/fit/fit.md
and fit.jsonl; `--twins` measures small steps of the same families on this CPU instead, into twins.jsonl and fit.md.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import msgspec

from benchmarks import Row, keep, kept, made, parser, sac, spent, table
from profiler.analysis.rows import against, time_verdict_of
from profiler.analysis.rows import rows as read_rows
from profiler.core import schedule
from profiler.core.case import Case, Choice, Trial, encode
from profiler.core.errors import UserError
from profiler.core.gpu_specs import MOST_BYTES, rehearsed
from profiler.core.record import Record, bytes_needed
from profiler.core.units import bytes_text
from profiler.scripts.report import Asked
from profiler.training import resolved_label
from profiler.workflows import fit_command
from profiler.workflows.fit import FitRequest, fit
from profiler.workflows.fit_search import OFFLOAD, Search, timed
from profiler.workflows.spec import Request
from profiler.workflows.stages import ModelOnDevice, roomy

DEVICE, SHARE = "h100", 0.4
SCRIPT = Path("tests/scripts/nanogpt_like.py")  # its batch is such that activations are most of it
FILE = "benchmarks/fit_models.py"
LLAMA = "hf:llama:sequence=2048,vocab_size=128256,hidden_size=2048,intermediate_size=8192,num_hidden_layers=16"
LLAMA += ",num_attention_heads=32,num_key_value_heads=8,tie_word_embeddings=True"  # Llama 3.2 1B
FOLDER = Path("results/fit")
GIB = 1 << 30
BUDGETS = (0.75, 0.5, 0.25)  # of a compiled budget besides 0, the largest that fits
LADDER = ("chunk-loss", "fused", "offload-inputs", "in-backward", *(f"micro-batches:n={n}" for n in (2, 4, 8)))


class Step(Row, frozen=True, kw_only=True):
    """A training step, and the limit of what its allocator reserves."""

    name: str
    batch_size: int
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

NAMES = (*(step.name for step in STEPS), SCRIPT.stem)
SMALL = "n_layer=4,n_embd=128,n_head=4,vocab_size=8000"
BERT = "num_hidden_layers=4,hidden_size=128,num_attention_heads=4,intermediate_size=512,vocab_size=8000"
TWINS = {  # small steps of the same families
    "GPT-2": (f"hf:gpt2:sequence=128,{SMALL}", 8),
    "Llama-1B": (LLAMA.replace("2048", "128").replace("8192", "512").replace("128256", "8000").replace("16", "4"), 8),
    "BERT-base": (f"hf:bert:sequence=64,{BERT}", 16),
    "ViT-L": ("timm:vit_tiny_patch16_224", 2),
    "ResNet-50": ("torchvision:resnet18", 4),
    "MNIST CNN": ("mnist-cnn:channels=16", 16),
    "LSTM": (f"{FILE}:lstm:sequence=32,width=128,layers=4", 8),
    "U-Net": (f"{FILE}:unet:width=16,side=32", 4),
    "MoE": (f"{FILE}:moe:sequence=64,width=128,layers=4", 8),
}
ROUNDS = 5  # of a twin's pairs of steps


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """Our way and the fastest other that fits, measured on this CPU; the ratio is of our step to the other's."""

    name: str
    limit: float  # of the step's own peak
    ours: str
    other: str
    ratio: tuple[float, float | None, float | None] | None = None  # and its interval
    verdict: str = ""


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
    arguments.add_argument("--twins", action="store_true", help="measure small steps on this CPU, on quiet cores")
    asked = arguments.parse_args()
    if asked.twins:
        return _measured(asked.output or FOLDER, asked.names)
    if asked.one:
        step = next((step for step in STEPS if step.name == asked.one), None)
        found = judged(step, compiles=not asked.no_compiled) if step else scripted()
        sys.stdout.buffer.write(msgspec.json.encode(found))
        return 0
    folder = asked.output or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    known = {one.name: one for one in kept(folder / "fit.jsonl", Fits)}
    for name in NAMES:
        if not asked.names or name in asked.names:
            command = [sys.executable, "-m", "benchmarks.fit", "--one", name]
            done = spent([*command, *(["--no-compiled"] if asked.no_compiled else [])], stderr=None)
            known[name] = msgspec.json.decode(done.output, type=Fits)
            keep(folder / "fit.jsonl", known[name])
            _write(folder)
            print(_line(known[name]), flush=True)
    return int(not all(one.results[1].fits or (one.floor_bytes or 0) > one.limit_bytes for one in known.values()))


def judged(step: Step, *, compiles: bool) -> Fits:
    """Run the step by each way."""
    with ModelOnDevice(step.words) as model:
        rivals = Rivals(model, tempfile.mkdtemp())
        none = rivals.record("none")
        limit = int(step.limit_gib * GIB if step.limit_gib else SHARE * (none.readings.reserved_bytes or 0))
        results = [rivals.result("as it is", "none", limit)]
        results += [rivals.result("all", "all", limit), rivals.result("save_on_cpu", "offload", limit)]
        results += [rivals.compiled(limit)] if compiles else []
        results += [rivals.milp(limit), rivals.greedy(limit)]
    ours, floor = _ours(step, limit)
    return Fits(
        name=step.name, model=step.model, batch_size=step.batch_size, precision=step.precision, limit_bytes=limit,
        results=(results[0], ours, *results[1:]), floor_bytes=floor,
    )  # fmt: skip


def scripted() -> Fits:
    """Fit the script at SHARE of what it reserves; each way is the whole command."""
    words = (sys.executable, str(SCRIPT.resolve()), "--batch-size", "512")
    asked = Asked(words=words, gpus=rehearsed(DEVICE, memory=None, context="0"))
    whole = fit_command.fit(asked, MOST_BYTES).ways[0]
    fitted = fit_command.fit(asked, limit := int(SHARE * (whole.needed_bytes or 0)))
    ours = fitted.chosen or fitted.least
    ways = {"as it is": fitted.ways[0], "gcprof fit": ours} | {way.label: way for way in fitted.ways[1:] if way != ours}
    results = [
        Result(
            way=str(way), label=str(one.label), reserved_bytes=one.needed_bytes,
            peak_bytes=one.variant.largest.peak_bytes,
            time_ratio=one.step_seconds / whole.step_seconds, fits=one.fits(limit),
        )
        for way, one in ways.items()
    ]  # fmt: skip
    return Fits(
        name=SCRIPT.stem, model=SCRIPT.name, batch_size=512, precision="amp-bf16", limit_bytes=limit,
        results=tuple(results), floor_bytes=min(fitted.floors.values(), default=None),
    )  # fmt: skip


def _measured(folder: Path, names: list[str]) -> int:
    """Measure the twins, each at the part of its own peak that the limit of the large step is of what that reserves."""
    for one in {one.name: one for one in kept(folder / "fit.jsonl", Fits)}.values():
        if one.name in TWINS and (not names or one.name in names):
            measured = twin(one.name, one.limit_bytes / (one.results[0].reserved_bytes or 1))
            keep(folder / "twins.jsonl", measured)
            print(measured, flush=True)
    _write(folder)
    return 0


def twin(name: str, share: float) -> Twin:
    """Fit a twin and time it beside the fastest other way that fits: both alternate with the step as it is."""
    model, batch_size = TWINS[name]
    model = model.replace(FILE, str(Path(FILE).resolve()))
    words = Request(model=model, batch_size=str(batch_size), optimizer="adamw", strategies="none", device="cpu")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ModelOnDevice(words) as on_cpu:
        rivals = Rivals(on_cpu, folder)
        limit = int(share * (rivals.record("none").readings.peak_bytes or 0))
        other = rivals.greedy(limit)
        fitted = fit(FitRequest(words=words, limit=limit))
        ours = _label(fitted.chosen.case) if fitted.chosen else "nothing fits"
        made = Twin(name=name, limit=share, ours=ours, other=other.label if other.fits else "nothing fits")
        if not (fitted.chosen and other.fits):
            return made
        cases = [fitted.chosen.case, on_cpu.case.under(resolved_label(Choice(other.label)))]
        trials = schedule.measured(dict.fromkeys((on_cpu.case.baseline, *cases)), ROUNDS)
        by_case = {row.case: row for row in read_rows(list(on_cpu.engine.run(trials)))}
        mine, theirs = (by_case[case] for case in cases)
        ratio = against(mine, theirs)
        told = "same way" if mine is theirs else time_verdict_of(mine, theirs)
    return msgspec.structs.replace(made, ratio=ratio and (ratio.ratio, ratio.low, ratio.high), verdict=told)


def _ours(step: Step, limit: int) -> tuple[Result, int | None]:
    """Return the way that `gcprof fit` chooses; or what the least of its rows needs, and the floor that it proves."""
    began = time.monotonic()
    words = msgspec.structs.replace(step.words, model=step.model.replace(FILE, str(Path(FILE).resolve())))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fitted = fit(FitRequest(words=words, limit=limit, context_bytes=0))
    took = time.monotonic() - began
    row = fitted.chosen or min(fitted.rows, key=lambda row: fitted.needed_bytes(row) or 1 << 62)
    plan = f" {fitted.plan.plan}" if fitted.plan else ""
    result = Result(
        way="gcprof fit", label=_label(row.case) + plan, reserved_bytes=row.readings.reserved_bytes,
        peak_bytes=row.readings.peak_bytes, time_ratio=row.time_ratio, fits=fitted.chosen is not None,
        took_seconds=took,
    )  # fmt: skip
    return result, min(fitted.floors.values(), default=None)


def _label(case: Case) -> str:
    """Return the strategy with its levers, without the name of a plan's file."""
    return "+".join(["plan", *case.label.parts[1:]]) if case.strategy.name == "plan" else str(case.label)


class Rivals:
    """Runs the step under labels, each once."""

    def __init__(self, model: ModelOnDevice, folder: str) -> None:
        model.case = roomy(model.case) if model.case.is_rehearsed else model.case
        self._model, self._search, self._folder = model, Search(model, 0, 0), folder

    def record(self, label: str) -> Record:
        """Return the step under a label, with the waits of each stage where inputs wait in host memory, as ours has."""
        choice = resolved_label(Choice(label))
        record = self._search.run(choice)
        if OFFLOAD not in choice.parts:
            return record
        alone = self._search.run(Choice("+".join(["none", *(one for one in choice.parts[1:] if one != OFFLOAD)])))
        return timed(record, self._search.added_seconds(choice), {alone.case.label: alone})

    def result(self, way: str, label: str, limit: int) -> Result:
        return self._of(way, label, self.record(label), limit)

    def _of(self, way: str, label: str, record: Record, limit: int) -> Result:
        if record.outcome != "ok":
            return Result(way=way, label=f"{label}: {record.outcome}: {record.detail}")
        (row,) = (row for row in read_rows([self.record("none"), record]) if row.case == record.case)
        reserved = bytes_needed(record.readings, record.case.device, 0)
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

    def milp(self, limit: int) -> Result:
        """Return the step with PyTorch's checkpoints of the largest of its budgets that fits, else of the smallest."""
        way, file = "sac_milp", f"{self._folder}/policies.json"
        asked = sac.Asked(case=self._model.case, limit_bytes=limit, file=file)
        try:
            answer = self._model.engine.ask("benchmarks.sac:solve", encode(asked).decode(), failing="its process")
        except UserError as error:
            return Result(way=way, label=error.message)
        result = Result(way=way, label=answer.get("why", ""))
        for place in range(answer.get("num_policies", 0)):
            model = Choice.of(f"{Path('benchmarks/sac.py').resolve()}:planned", {"file": file, "place": place})
            own = msgspec.structs.replace(self._model.case, strategy=Choice("own"))
            trial = Trial(case=msgspec.structs.replace(own, model=model), passes=schedule.REHEARSED_PASSES)
            (record,) = self._model.engine.run([trial])
            record = msgspec.structs.replace(record, case=own)  # of the same baseline
            result = self._of(way, f"policy {place + 1} of {answer['num_policies']}", record, limit)
            if result.fits:
                break
        return result

    def greedy(self, limit: int) -> Result:
        """Return `all` with levers added by their cost, each if it lowers reserved bytes, until it fits."""
        result = self.result("all + levers by cost", "all", limit)
        ladder = [one for one in LADDER if one != OFFLOAD or self._model.case.is_rehearsed]  # a CPU's host is itself
        for lever in ladder:
            if result.fits or not result.reserved_bytes:
                break
            parts = [part for part in result.label.split("+") if part.split(":")[0] != lever.split(":")[0]]
            with contextlib.suppress(UserError):  # in-backward with micro-batches
                more = self.result(result.way, str(resolved_label(Choice("+".join([*parts, lever])))), limit)
                if more.reserved_bytes and more.reserved_bytes < result.reserved_bytes:
                    result = more
        return result


def _write(folder: Path) -> None:
    """Write the page of all that is kept."""
    known = {one.name: one for one in kept(folder / "fit.jsonl", Fits)}
    twins = {one.name: one for one in kept(folder / "twins.jsonl", Twin)}
    text = _page([known[name] for name in NAMES if name in known])
    if twins:
        rows = [(one.name, f"{one.limit:.0%}", one.ours, one.other, _interval(one), one.verdict)
                for one in map(twins.get, NAMES) if one]  # fmt: skip
        text += "\n## Measured on a CPU\n\nSmall steps of the same families, each at the same part of its own peak. "
        text += "Nothing is moved to the host, which a CPU's memory is; nothing is compiled.\n\n"
        text += table("twin | limit: | gcprof fit | fastest other that fits | ratio of step times: | gcprof is", rows)
    (folder / "fit.md").write_text(text)


def _interval(one: Twin) -> str:
    if one.ratio is None:
        return ""
    ratio, low, high = one.ratio
    return f"{ratio:.3f}" if low is None else f"{ratio:.3f} ({low:.3f} to {high:.3f})"


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
    ways = list(dict.fromkeys(result.way for one in steps if one.name != SCRIPT.stem for result in one.results[1:]))
    fitting = {way: sum(result.way == way and result.fits for one in steps for result in one.results) for way in ways}
    text = f"Of {len(steps)} steps " + ", ".join(f"{way} fits {number}" for way, number in fitting.items()) + ".\n\n"
    shares = []
    for one in steps:
        if one.floor_bytes:
            text += f"- {one.name}: no plan needs less than {bytes_text(one.floor_bytes)}, as traces prove\n"
        ours, *others = one.results[1:]
        extra = [result.time_ratio - 1 for result in others if result.fits and result.time_ratio is not None]
        if ours.fits and ours.time_ratio is not None and extra and min(extra) > 0:
            shares.append((ours.time_ratio - 1) / min(extra))
            text += f"- {one.name}: gcprof {ours.time_ratio - 1:+.1%}, the fastest other that fits {min(extra):+.1%}\n"
    mean = f"On average that is {fmean(shares):.0%} of the other's extra time" if shares else "No other has a time"
    return f"{text}\n{mean}, as estimated for the GPU: none of these times is measured.\n"


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
