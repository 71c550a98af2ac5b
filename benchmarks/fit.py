"""Which of the ways to fit a memory fit it, and how much longer a step then takes: `just bench-fit`.

Nine steps and a script on a rehearsed H100, each with a limit of what the allocator reserves. `gcprof fit` is held to
checkpoints of every block with levers added by their cost, to saved tensors on the host (save_on_cpu), to a compiled
budget, and to PyTorch's sac_milp. Bytes are rehearsed; times are the estimate for the GPU. Writes results/fit/fit.md
and fit.jsonl; `--twins` measures small steps of the same families on this CPU instead, into twins.jsonl and fit.md.
"""

import contextlib
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from benchmarks import Row, called, keep, kept, made, parser, spent, table
from profiler.analysis.rows import against, time_verdict_of
from profiler.analysis.rows import rows as read_rows
from profiler.core import schedule
from profiler.core.case import Case, Choice, Trial, decode, encode
from profiler.core.errors import UserError
from profiler.core.gpu_specs import MOST_BYTES, rehearsed, to_rehearse
from profiler.core.record import Record, bytes_needed
from profiler.core.units import GIB, bytes_text
from profiler.scripts.report import Asked
from profiler.training import resolved_label
from profiler.workflows import fit_command
from profiler.workflows.fit import FitRequest, fit
from profiler.workflows.fit_search import OFFLOAD, Search, timed
from profiler.workflows.stages import ModelOnDevice, roomy

DEVICE, SHARE = "h100", 0.4
SCRIPT = Path("tests/scripts/nanogpt_like.py")  # its batch is such that activations are most of it
FILE = "benchmarks/fit_models.py"
LLAMA = "hf:llama:sequence=2048,vocab_size=128256,hidden_size=2048,intermediate_size=8192,num_hidden_layers=16"
LLAMA += ",num_attention_heads=32,num_key_value_heads=8,tie_word_embeddings=True"  # Llama 3.2 1B
BUDGETS = (0.75, 0.5, 0.25)  # of a compiled budget besides 0, the largest that fits
WAYS = (("as it is", "none"), ("all", "all"), ("save_on_cpu", "offload"))
LADDER = ("chunk-loss", "fused", "offload-inputs", "in-backward", *(f"micro-batches:n={n}" for n in (2, 4, 8)))


class Step(Row, frozen=True, kw_only=True):
    """A training step, and the limit of what its allocator reserves."""

    name: str
    batch_size: int
    optimizer: str = "adamw"
    limit_gib: float | None = None  # None: SHARE of what it reserves as it is


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
    Step(name=SCRIPT.stem, model=SCRIPT.name, batch_size=512, precision="amp-bf16"),
)
SMALL = "n_layer=4,n_embd=128,n_head=4,vocab_size=8000"
BERT = "num_hidden_layers=4,hidden_size=128,num_attention_heads=4,intermediate_size=512,vocab_size=8000"
TWINS = {  # small steps of the same families
    "GPT-2": (f"hf:gpt2:sequence=128,{SMALL}", 8),
    "Llama-1B": (LLAMA.replace("2048", "128").replace("8192", "512").replace("128256", "8000").replace("16", "4"), 8),
    "BERT-base": (f"hf:bert:sequence=64,{BERT}", 16),
    "ViT-L": ("timm:vit_tiny_patch16_224", 16),
    "ResNet-50": ("torchvision:resnet18", 4),
    "MNIST CNN": ("mnist-cnn:channels=16", 16),
    "LSTM": (f"{FILE}:lstm:sequence=128,width=256", 64),
    "U-Net": (f"{FILE}:unet:width=32,side=32", 32),
    "MoE": (f"{FILE}:moe:sequence=128,width=128", 16),
}
ROUNDS = 5  # of a twin's pairs of steps


class Twin(Struct, frozen=True, kw_only=True):
    """Our way and the fastest other that fits, measured on this CPU; the ratio is of our step to the other's."""

    name: str
    limit: float  # of the step's own peak
    ours: str
    other: str
    ratio: tuple[float, float | None, float | None] | None = None  # and its interval
    verdict: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        ratio, low, high = self.ratio or (None, None, None)
        told = "" if ratio is None else f"{ratio:.3f}" if low is None else f"{ratio:.3f} ({low:.3f} to {high:.3f})"
        return self.name, f"{self.limit:.0%}", self.ours, self.other, told, self.verdict


class Result(Struct, frozen=True, kw_only=True):
    """What one way does with one step."""

    way: str
    label: str  # the strategy with its levers, or why there is none
    reserved_bytes: int | None = None
    time_ratio: float | None = None  # to the step as it is, estimated for the GPU
    fits: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        more = "" if self.time_ratio is None else f"{self.time_ratio - 1:+.1%}"
        return self.way, self.label, bytes_text(self.reserved_bytes), more, "yes" if self.fits else "no"


class Fits(Struct, frozen=True, kw_only=True):
    """One step under its limit, by each way; the first is the step as it is, the second gcprof's."""

    name: str
    limit_bytes: int
    results: tuple[Result, ...]
    floor_bytes: int | None = None  # if gcprof finds no way: what any of its plans needs at least


def main() -> int:
    arguments = parser(__doc__, "of steps")
    arguments.add_argument("--twins", action="store_true", help="measure small steps on this CPU, on quiet cores")
    asked = arguments.parse_args()
    folder = asked.output or Path("results/fit")
    folder.mkdir(parents=True, exist_ok=True)
    known = {one.name: one for one in kept(folder / "fit.jsonl", Fits)}
    for name in asked.names or [step.name for step in STEPS]:
        if not asked.twins:
            known[name] = decode(spent(called("benchmarks.fit", "judged", name), stderr=None).output, Fits)
            keep(folder / "fit.jsonl", known[name])
            for result in known[name].results:
                print(name, *result.cells, sep=" | ", flush=True)
        elif name in TWINS and name in known:  # the limit is the part of its own peak that is the large step's
            measured = twin(name, known[name].limit_bytes / (known[name].results[0].reserved_bytes or 1))
            keep(folder / "twins.jsonl", measured)
            print(measured, flush=True)
        (folder / "fit.md").write_text(_page(folder, known))
    missed = [one for one in known.values() if not one.results[1].fits and (one.floor_bytes or 0) <= one.limit_bytes]
    return int(bool(missed) and not asked.twins)


def judged(name: str) -> Fits:
    """Run the step by each way."""
    (step,) = (step for step in STEPS if step.name == name)
    limit, results, floor = _scripted() if name == SCRIPT.stem else _by_each(step)
    return Fits(name=name, limit_bytes=limit, results=tuple(results), floor_bytes=floor)


def _by_each(step: Step) -> tuple[int, list[Result], int | None]:
    """Return the limit, what each way does, and the floor that gcprof proves."""
    with ModelOnDevice(step.request(to_rehearse(DEVICE))) as model:
        rivals = Rivals(model, tempfile.mkdtemp())
        reserved = rivals.none.readings.reserved_bytes or 0
        rivals.limit = limit = int(step.limit_gib * GIB if step.limit_gib else SHARE * reserved)
        results = [*(rivals.result(*way) for way in WAYS), rivals.compiled(), rivals.milp(), rivals.greedy()]
    words = replace(step, model=step.model.replace(FILE, str(Path(FILE).resolve()))).request(to_rehearse(DEVICE))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fitted = fit(FitRequest(words=words, limit=limit, context_bytes=0))
    row = fitted.chosen or min(fitted.rows, key=lambda row: fitted.needed_bytes(row) or 1 << 62)
    plan = f" {fitted.plan.plan}" if fitted.plan else ""
    ours = Result(
        way="gcprof fit", label=_label(row.case) + plan, reserved_bytes=row.readings.reserved_bytes,
        time_ratio=row.time_ratio, fits=fitted.chosen is not None,
    )  # fmt: skip
    return limit, [results[0], ours, *results[1:]], min(fitted.floors.values(), default=None)


def _scripted() -> tuple[int, list[Result], int | None]:
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
            time_ratio=one.step_seconds / whole.step_seconds, fits=one.fits(limit),
        )
        for way, one in ways.items()
    ]  # fmt: skip
    return limit, results, min(fitted.floors.values(), default=None)


def twin(name: str, share: float) -> Twin:
    """Fit a twin and time it beside the fastest other way that fits: both alternate with the step as it is."""
    model, batch_size = TWINS[name]
    twin = Row(model=model.replace(FILE, str(Path(FILE).resolve())), batch_size=batch_size, optimizer="adamw")
    words = twin.request("cpu")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ModelOnDevice(words) as on_cpu:
        rivals = Rivals(on_cpu, folder)
        rivals.limit = limit = int(share * (rivals.none.readings.peak_bytes or 0))
        other = rivals.greedy()
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
    return replace(made, ratio=ratio and (ratio.ratio, ratio.low, ratio.high), verdict=told)


def _label(case: Case) -> str:
    """Return the strategy with its levers, without the name of a plan's file."""
    return "+".join(["plan", *case.label.parts[1:]]) if case.strategy.name == "plan" else str(case.label)


class Rivals:
    """Runs the step under labels, each once, under a limit."""

    def __init__(self, model: ModelOnDevice, folder: str) -> None:
        model.case = roomy(model.case) if model.case.is_rehearsed else model.case
        self._model, self._search, self._folder = model, Search(model.step, 0, 0), folder
        self.none, self.limit = self.record("none"), 0

    def record(self, label: str) -> Record:
        """Return the step under a label, with the waits of each stage where inputs wait in host memory, as ours has."""
        choice = resolved_label(Choice(label))
        record = self._search.run(choice)
        if OFFLOAD not in choice.parts:
            return record
        alone = self._search.run(Choice("+".join(["none", *(one for one in choice.parts[1:] if one != OFFLOAD)])))
        return timed(record, self._search.added_seconds(choice), {alone.case.label: alone})

    def result(self, way: str, label: str, record: Record | None = None) -> Result:
        record = record or self.record(label)
        if record.outcome != "ok":
            return Result(way=way, label=f"{label}: {record.outcome}: {record.detail}")
        (row,) = (row for row in read_rows([self.none, record]) if row.case == record.case)
        reserved = bytes_needed(record.readings, record.case.device, 0)
        fits = reserved is not None and reserved <= self.limit
        return Result(way=way, label=label, reserved_bytes=reserved, time_ratio=row.time_ratio, fits=fits)

    def compiled(self) -> Result:
        """Return the step with the largest compiled budget that fits, else with the smallest."""
        least = self.result("compiled budget", "compile-budget:budget=0.0")
        tried = (self.result(least.way, f"compile-budget:budget={budget}") for budget in BUDGETS if least.fits)
        return next((result for result in tried if result.fits), least)

    def milp(self) -> Result:
        """Return the step with PyTorch's checkpoints of the largest of its budgets that fits, else of the smallest."""
        way, file = "sac_milp", f"{self._folder}/policies.json"
        request = encode((self._model.case, self.limit, file)).decode()
        try:
            answer = self._model.engine.ask("benchmarks.sac:solve", request, failing="its process")
        except UserError as error:
            return Result(way=way, label=error.message)
        result = Result(way=way, label=answer.get("why", ""))
        for place in range(answer.get("num_policies", 0)):
            model = Choice.of(f"{Path('benchmarks/sac.py').resolve()}:planned", {"file": file, "place": place})
            own = replace(self._model.case, strategy=Choice("own"))
            trial = Trial(case=replace(own, model=model), passes=schedule.REHEARSED_PASSES)
            (record,) = self._model.engine.run([trial])
            label = f"policy {place + 1} of {answer['num_policies']}"
            result = self.result(way, label, replace(record, case=own))  # of the same baseline
            if result.fits:
                break
        return result

    def greedy(self) -> Result:
        """Return `all` with levers added by their cost, each if it lowers reserved bytes, until it fits."""
        result = self.result("all + levers by cost", "all")
        ladder = [one for one in LADDER if one != OFFLOAD or self._model.case.is_rehearsed]  # a CPU's host is itself
        for lever in ladder:
            if result.fits or not result.reserved_bytes:
                break
            parts = [part for part in result.label.split("+") if part.split(":")[0] != lever.split(":")[0]]
            with contextlib.suppress(UserError):  # in-backward with micro-batches
                more = self.result(result.way, str(resolved_label(Choice("+".join([*parts, lever])))))
                if more.reserved_bytes and more.reserved_bytes < result.reserved_bytes:
                    result = more
        return result


def _page(folder: Path, known: dict[str, Fits]) -> str:
    """Return the page of all that is kept."""
    steps, rows = [known[step.name] for step in STEPS if step.name in known], []
    for step in STEPS:
        if one := known.get(step.name):
            head = f"{step.name}, {step.batch_size}, {step.precision}", bytes_text(one.limit_bytes)
            rows += [(*head, *one.results[0].cells), *(("", "", *result.cells) for result in one.results[1:])]
    text = f"# What fits\n\n{made('fit')} On a rehearsed {DEVICE.upper()}. Limits are of what the allocator reserves.\n"
    text += "Bytes are rehearsed; times are estimated for the GPU, and none are measured.\n\n"
    text += f"{table('step | limit: | way | with | reserved: | time: | fits', rows)}\n{_summary(steps)}"
    twins = {one.name: one for one in kept(folder / "twins.jsonl", Twin)}
    if not twins:
        return text
    text += "\n## Measured on a CPU\n\nSmall steps of the same families, each at the same part of its own peak. "
    text += "Nothing is moved to the host, which a CPU's memory is; nothing is compiled.\n\n"
    head = "twin | limit: | gcprof fit | fastest other that fits | ratio of step times: | gcprof is"
    return text + table(head, (twins[name].cells for name in TWINS if name in twins))


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
