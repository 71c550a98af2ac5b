"""Words and sweep files (TOML) -> checked cases: an impossible request is refused here. Knows nothing of torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from profiler import training
from profiler.core import catalogue, device_choice, plan_file, safe_files, schedule
from profiler.core.case import SETTINGS, SWITCHES, Case, Choice, Setting, Trial, split_choices
from profiler.core.catalogue import Entry, Option
from profiler.core.errors import UserError, nearest, one_of, refuse_idle
from profiler.core.gpu_specs import parse
from profiler.core.schedule import Shard
from profiler.core.stats import Sampling
from profiler.core.units import bytes_text, parse_percent
from profiler.training import OPTIMIZERS, models
from profiler.training.models import meant
from profiler.workflows import COMMAND

SEGMENTS, OF_BLOCKS = "1,2,4,8,16,32", "sqrt,all,selective"  # defaults besides `none`: for chains, and for other models
TABLES = {  # for the fields of a case that are Choices
    "model": models.TABLE,
    "strategy": training.STRATEGIES,
    "optimizer": OPTIMIZERS,
    "parallel": training.DISTRIBUTED,
}
MEMBER = re.compile(r"[A-Za-z0-9]\w*(?:[.-]\w+)*", re.ASCII)  # a family's member: resnet18, vit_base_patch16_224.augreg
WORDS = re.compile(r"\w+(?:\+\w+)*", re.ASCII)  # the value of an option of our own: own, 224, matmul+gelu, 16+32
LOADS = re.compile(  # options that make other libraries load weights or code, by a number or `true`
    r"_.*|(?:.*_)?(?:pretrained|trust|remote|hub|download|weights|kernels)(?:_.*)?", re.IGNORECASE
)
FLAGS = {"model": "model", "strategies": "strategy", "optimizer": "optimizer", "parallel": "parallel"}
UNTIL = ("precision_target", "max_samples", "max_seconds")  # instead of a fixed number of samples
LEAST_STEPS = 4  # timed in every round: two pairs, so that three rounds have six, the fewest with a confidence interval
FEWEST, MOST = 6, 10_000  # samples per round: fewer than six give no confidence interval of the median
LONGEST = 100_000  # seconds of sampling per round
TOGETHER = (("strategies", "segments"), ("device", "gpus"))  # one axis with two words
OF_KIND = ("rounds", "samples", *UNTIL, "predict", "calibrate", "routing")  # not for every kind of device
T = TypeVar("T")
N = TypeVar("N", int, float)
PRECISIONS = ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
EXAMPLES = "examples are in configs/"
LARGEST = 1_000_000  # segments; more than any chain has modules
LONGEST_RANGE = 1000
NUMBERS = {  # the axes of whole numbers: what each is of, and the largest
    "accumulate": ("a number of micro-batches", 10_000),
    "batch_size": ("a batch size", 10**9),
    "ranks": ("a number of ranks", 65_536),
    "segments": ("a number of segments", LARGEST),
}


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for, as words; None if not given. The names are those of flags and the keys of a sweep file.

    Each has its help text. The switches of a Case are fields too: `keep_grads`, `repair_batchnorm`, ...
    """

    model: str | None = None
    segments: Annotated[str | None, "Numbers of segments: 1,2,4 or 1..32 or 1..32:x2."] = None
    strategies: Annotated[str | None, "Other strategies; `gcprof strategies` lists them."] = None
    optimizer: Annotated[str | None, "Or torch:NAME; its options follow: adamw:lr=0.1. [default: sgd]"] = None
    batch_size: Annotated[str | None, "Samples per micro-batch. [default: the model's]"] = None
    precision: Annotated[str | None, "Number format; several in a sweep. [default: fp32]"] = None
    accumulate: Annotated[str | None, "Micro-batches per step: 4, or in a sweep 1,2,4. [default: 1]"] = None
    parallel: Annotated[str | None, "How the ranks train together. [default: ddp]"] = None
    ranks: Annotated[str | None, "Processes that train together, each with a batch and a device. [default: 1]"] = None
    blocks: Annotated[
        str | None, "Blocks to checkpoint: 'model.layers.*', or enc1,enc2,mid; `gcprof blocks` shows those found."
    ] = None
    routing: Annotated[str | None, "Where a mixture of experts sends its tokens. [default: balanced]"] = None
    device: Annotated[
        str | None,
        "auto, cpu, cuda, cuda:N; for a GPU not here: fake:h100 predicts, rehearse:h100 rehearses. [default: auto]",
    ] = None
    gpus: Annotated[str | None, "Kinds of GPU to run on: a100,h100. For engines that have them: ray."] = None
    predict: Annotated[bool | None, "Also predict every case, and show the error."] = None
    calibrate: Annotated[bool | None, "Measure `none` here first, and use the workspaces of its operators."] = None
    data: Annotated[str | None, "Folder with the MNIST IDX files; without it the batch is synthetic."] = None
    verify: Annotated[str | None, "Compare gradients; strict: to the bit. [default: auto]"] = None
    rounds: Annotated[int | None, "Rounds over all cases, each in fresh processes. [default: 3]"] = None
    samples: Annotated[
        int | None, "Timed steps per round, a fixed number. [default: as many as --precision-target needs]"
    ] = None
    precision_target: Annotated[str | None, "Target for the 95 % interval of the time ratio. [default: 3%]"] = None
    max_samples: Annotated[int | None, "Maximum number of timed steps per round. [default: 100]"] = None
    max_seconds: Annotated[
        float | None, "Maximum seconds of timed steps per round, after a few of them. [default: 2]"
    ] = None
    warmup: Annotated[int | None, "Warm-up steps before the timed ones, after a first one. [default: 1]"] = None
    seed: Annotated[int | None, "The seed of weights and batch. [default: 0]"] = None

    if TYPE_CHECKING:  # type checkers do not know the switches: any word may be one

        def __init__(self, **words: Any) -> None: ...
        def __getattr__(self, switch: str) -> bool | None: ...


if not TYPE_CHECKING:  # add the switches as fields, whose names are known only at run time
    Request = msgspec.defstruct(
        "Request",
        [(switch.key or name, Annotated[bool | None, switch.help], None) for name, switch in SWITCHES.items()],
        bases=(Request,),
        namespace={"__doc__": Request.__doc__},
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: its trials in order, and remarks for the user."""

    trials: tuple[Trial, ...]
    data_directory: str | None
    remarks: tuple[str, ...] = ()
    shard: Shard | None = None  # which shard of a sweep the trials are, if they are not all


def override(base: Request, words: Request) -> Request:
    """Return the sweep file's request, overridden by the words of the command line."""
    over = given(words)
    lost = UNTIL if "samples" in over else ("samples",) if over.keys() & set(UNTIL) else ()
    return msgspec.structs.replace(base, **{**dict.fromkeys(lost), **over})


def changed(words: Request, typed: Request) -> Request:
    """Return the words of a run, overridden by those that were typed to measure it anew.

    An axis that has two words is replaced by either; words that another kind of device does not take are dropped.
    """
    lost = [name for pair in TOGETHER if any(getattr(typed, name) is not None for name in pair) for name in pair]
    if (typed.device or typed.gpus) and parse(typed.device or "").prefix != parse(words.device or "").prefix:
        lost += OF_KIND
    return override(msgspec.structs.replace(words, **dict.fromkeys(lost)), typed)


def given(words: Request) -> dict[str, Any]:
    """Return the words that were given, by name."""
    return {name: value for name, value in msgspec.structs.asdict(words).items() if value is not None}


def flag(name: str) -> str:
    """A word's name as users type it: batch_size -> --batch-size."""
    return f"--{name.replace('_', '-')}"


def flags(words: Request, *, without: Collection[str] = ()) -> list[str]:
    """Return the words as they are typed, for the next command."""
    asked = {name: value for name, value in given(words).items() if name not in without and value is not False}
    return [part for name, value in asked.items() for part in (flag(name), *([] if value is True else [str(value)]))]


def command_line() -> str:
    """Return the command, without secrets and with only the last name of the files and folders that options name."""
    words = ["gcprof"]
    for before, word in pairwise(["gcprof", *COMMAND.get()]):
        alone = before in ("--data", "--config", "--output", "-o")
        option = "" if alone else (re.match(r"--(data|config|output)=|-o=?|", word) or [""])[0]
        words.append(option + Path(word[len(option) :]).name if alone or option else word)
    return shlex.join(safe_files.hide(word) for word in words)


def _refuse_secrets(request: Request) -> None:
    for name, value in given(request).items():
        if isinstance(value, str) and safe_files.has_secret(value):
            message = f"{flag(name)} holds what looks like a secret, and every record would hold it too"
            raise UserError(message, hint="let your file read it from the environment")


def check(request: Request, choose_device: Callable[[str], str]) -> CheckedRequest:
    """Check a request, and return the trials of all its cases in rounds.

    Every list is an axis: there is a case for every combination. `choose_device` maps a device's word to its name; it
    is called last, since it may have to look for devices. Raises UserError.
    """
    _refuse_secrets(request)
    model_words = list(map(meant, split_choices("mnist-cnn" if request.model is None else request.model)))
    chosen_models = _resolved(model_words, "model")
    chosen = strategies_of(request)
    for choice in chosen:
        strategy = choice.parts[0]
        if strategy.name == "plan":  # checked now: a row skipped later would be taken for a result
            plan_file.read(Path(strategy.options.get("file", plan_file.USUAL)))
    named = split_choices("sgd" if request.optimizer is None else request.optimizer)
    optimized = _resolved(list(map(_known_optimizer, named)), "optimizer")
    for choice in optimized:
        training.refuse_unknown_optimizer(choice)
    sizes: list[int | None] = [*numbers("batch_size", request.batch_size)] or [None]
    micro_batches = numbers("accumulate", request.accumulate) or [1]
    words = ["fp32"] if request.precision is None else [word.strip() for word in request.precision.split(",")]
    precisions = _unique(one_of(word, PRECISIONS, flag="--precision") for word in words)
    ways = _ways(request)
    if request.batch_size is not None:
        hint = "give its function a parameter batch_size, or leave it out"
        _refuse_own_batch("--batch-size", "batch_size", chosen_models, hint)
    if request.blocks is not None and not request.blocks.strip():
        hint = "'layers.*' or enc1,enc2, as `gcprof blocks MODEL` shows them; leave it out for those that are found"
        raise UserError(f"--blocks: '{request.blocks}' names no block", hint=hint)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Case)}
    fields = {name: _setting(name, setting, request, defaults[name]) for name, setting in SETTINGS.items()}
    rounds = _within(1, 1000, "--rounds", request.rounds, 3)
    check_data(request.data, chosen_models)
    devices = _unique(choose_device(word) for word in device_choice.words(request.device, request.gpus))
    until = sampling(request, devices[0])
    if until:
        fields["samples"] = LEAST_STEPS
    remarks: list[str] = []
    if devices == ["cpu"]:
        chosen_models = _unique(smaller(model, remarks) for model in model_words)
    points = product(devices, chosen_models, optimized, sizes, micro_batches, precisions, ways, chosen)
    cases = [
        Case(
            model=model,
            strategy=Choice("none"),
            optimizer=optimizer,
            batch_size=size or batch_size(model),
            precision=precision,
            accumulate=accumulate,
            device=device,
            data="synthetic" if request.data is None else "files",
            sampling=until,
            parallel=way,
            ranks=ranks,
            **fields,
        ).under(label)
        for device, model, optimizer, size, accumulate, precision, (way, ranks), label in points
    ]
    for case in cases:
        training.refuse_conflicts(case)
    return CheckedRequest(trials=_trials(request, cases, rounds), data_directory=request.data, remarks=tuple(remarks))


def strategies_of(request: Request) -> list[Choice]:
    """Return the baseline, then the strategies asked for, with their levers, each once. Raises UserError.

    By default they are SEGMENTS if all models are chains, else OF_BLOCKS.
    """
    labels = [] if request.strategies is None else split_choices(request.strategies)
    named = [training.resolved_label(label) for label in labels]
    segments = request.segments
    if segments is None and not named:
        is_chain = request.model is None or all(one.name in models.CHAINS for one in split_choices(request.model))
        named, segments = ([], SEGMENTS) if is_chain else (split_choices(OF_BLOCKS), None)
    counts = (Choice.of("segments", {"k": count}) for count in numbers("segments", segments))
    return _unique([Choice("none"), *named, *counts])


def _known_optimizer(choice: Choice) -> Choice:
    """Return an optimizer as the table has it, where it is written as in torch: AdamW."""
    name = choice.name.lower()
    return Choice.of(name, choice.options) if name in OPTIMIZERS else choice


def _resolved(words: list[Choice], field: str) -> list[Choice]:
    return _unique(catalogue.resolve(choice, TABLES[field], what=field) for choice in words)


def _ways(request: Request) -> list[tuple[Choice | UnsetType, int | UnsetType]]:
    """Return every combination of how to train in parallel and how many ranks."""
    if request.ranks is None and request.parallel is None:
        return [(UNSET, UNSET)]
    if request.ranks is None:
        raise UserError("--parallel needs --ranks", hint="say how many: 4 or 8,64,512")
    named = _resolved(split_choices(request.parallel or "ddp"), "parallel")
    return [(way, ranks) for way in named for ranks in numbers("ranks", request.ranks)]


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


def _setting(name: str, setting: Setting, request: Request, default: Any) -> Any:
    """The value of a case's field, as its Setting allows. Raises UserError."""
    key = setting.key or name
    option, value = flag(key), getattr(request, key)
    if name in SWITCHES:
        return value or default
    if setting.most is not None:
        return _within(setting.least, setting.most, option, value, default)
    if value is None or not setting.choices:
        return default if value is None else value
    word = one_of(value, setting.choices, flag=option)
    return default if default is UNSET and word == setting.choices[0] else word


def _trials(request: Request, cases: list[Case], rounds: int) -> tuple[Trial, ...]:
    """Return measurements, predictions, or both, as the device and the request say."""
    device = cases[0].device
    is_predicted, leave = cases[0].is_predicted, "leave it out"
    if request.ranks is not None and (is_predicted or request.predict):
        hint = "--device h100, on Linux on x86-64 with a CUDA build of torch"
        raise UserError("--ranks: ranks are rehearsed, not estimated", hint=hint)
    timed = {"--rounds": request.rounds is not None}
    if is_predicted:
        refuse_idle({"predict": request.predict}, f"on '{device}', which is predicted for", hint=leave)
        refuse_idle(timed, "on a prediction, which is exact", hint=leave)
        return schedule.predicted(cases, calibrate=bool(request.calibrate))
    refuse_idle({"--routing": request.routing is not None}, f"on '{device}', where the data decide", hint=leave)
    if cases[0].is_rehearsed:
        refuse_idle(timed, "on a rehearsal, whose bytes are exact", hint=leave)
    refuse_idle({"calibrate": request.calibrate}, "on a measurement", hint="leave it out; predict uses it by itself")
    return schedule.measured(cases, rounds, predict=bool(request.predict))


def _within(least: float, most: N, option: str, value: N | None, default: N) -> N:
    if value is not None and not least <= value <= most:
        size = "small" if value < least else "large"
        raise UserError(f"{option}: {value:g} is too {size}", hint=f"{least:g} to {most:,}")
    return default if value is None else value


def numbers(option: str, text: str | None) -> list[int]:
    """Return `1,2,4`, `1..32` or `1..32:x2` as whole numbers from 1, each once; [] if nothing is given.

    Raises UserError that names the option and the bad item.
    """
    noun, most = NUMBERS[option]
    found: list[int] = []
    for item in [] if text is None else map(str.strip, text.split(",")):
        span = re.fullmatch(r"(\d{1,10})(?:\.\.(\d{1,10})(?::x(\d{1,9}))?)?", item, flags=re.ASCII)
        first, last, factor = (int(part) if part else None for part in span.groups()) if span else (0, 0, None)
        first, last = first or 0, last or first or 0
        if not 1 <= first <= last <= most or factor in (0, 1) or (factor is None and last - first >= LONGEST_RANGE):
            hint = f"whole numbers from 1 to {most:,}: 1,2,4, or 1..32 (up to {LONGEST_RANGE:,} of them), or 1..32:x2"
            raise UserError(f"{flag(option)}: '{item}' is not {noun}", hint=hint)
        while first <= last:
            found.append(first)
            first = first * factor if factor else first + 1
    return _unique(found)


def sampling(words: Request, device: str) -> Sampling | UnsetType:
    """Return when to stop sampling; UNSET if a fixed number is asked for, or the device has no times.

    Raises UserError.
    """
    is_fixed = words.samples is not None
    if is_fixed or parse(device).prefix:
        without = "--samples, which is a fixed number" if is_fixed else f"'{device}', where no step is timed"
        refuse_idle({flag(name): getattr(words, name) is not None for name in UNTIL}, f"with {without}")
        return UNSET
    usual = Sampling()
    typed = words.precision_target
    target = usual.precision_target if typed is None else parse_percent(typed)
    if target is None or not 0.001 <= target <= 0.5:
        message = f"--precision-target: '{typed}' is no precision"
        raise UserError(message, hint="a percentage from 0.1% to 50%, like 2%")
    return Sampling(
        precision_target=target,
        max_samples=_within(FEWEST, MOST, "--max-samples", words.max_samples, usual.max_samples),
        max_seconds=_within(0.001, LONGEST, "--max-seconds", words.max_seconds, usual.max_seconds),
    )


def batch_size(model: Choice) -> int | None:
    """Return the model's default batch size; None if it has none."""
    default = catalogue.read(model.name, models.TABLE).parameters.get("batch_size")
    return int(default) if default is not None and default.isdecimal() else None


def _refuse_own_batch(option: str, parameter: str, chosen: list[Choice], hint: str) -> None:
    """Raises UserError where an option was given, and a chosen model's function has no such parameter."""
    for model in chosen:
        if parameter not in catalogue.read(model.name, models.TABLE).parameters:
            raise UserError(f"{option} has no effect on '{model}', which makes its own batch", hint=hint)


def optimizer_text(case: Case) -> str:
    """Return the optimizer for a title that is written before the model is built: a user's model may bring its own."""
    return f"{case.optimizer}{'' if catalogue.listed(case.model.name, models.TABLE) else ' or its own'}"


def assumed_text(gradient_bytes: int) -> str:
    """Return what an assumed SGD, which keeps no state, leaves out: AdamW keeps two tensors like each gradient."""
    return f"no optimizer was named: SGD is assumed; --optimizer adamw adds {bytes_text(2 * gradient_bytes)} of state"


def smaller(model: Choice, remarks: list[str]) -> Choice:
    """Return the model with its smaller defaults for a CPU, for options that were not given."""
    without_gpu = models.WITHOUT_GPU.get(model.name, {})
    options = {key: value for key, value in without_gpu.items() if key not in model.options}
    chosen = catalogue.resolve(Choice.of(model.name, {**model.options, **options}), models.TABLE)
    if options:
        defaults = {option.name: option.default for option in catalogue.read(model.name, models.TABLE).options}
        full = Choice.of(model.name, {**model.options, **{key: defaults[key] for key in options}})
        remarks.append(f"{chosen} stands in for the full-size {model} on a CPU; for that, say {full}")
    return chosen


def check_data(directory: str | None, chosen: list[Choice]) -> None:
    """Raises UserError for a folder without MNIST's files, and for a chosen model that reads no files."""
    if directory is None:
        return
    if not directory or not Path(directory).is_dir():
        raise UserError(f"--data: '{directory}' is not a folder", hint="name the folder that holds the IDX files")
    _refuse_own_batch("--data", "data_directory", chosen, "leave it out for this model")
    if not any((Path(directory) / below / name).is_file() for below, name in models.DATA_FILES):
        names = " or ".join(str(Path(below) / name) for below, name in models.DATA_FILES)
        raise UserError(f"--data: '{directory}' holds no MNIST files", hint=f"it should have {names}")


def read_sweep(path: Path) -> Request:
    """Read a sweep file. Raises UserError with file, line and key if it is not TOML, or a key or type is wrong."""
    text, table = safe_files.load_toml(path, hint=EXAMPLES)
    return as_request(table, path=path, text=text)


def as_request(table: dict[str, Any], *, path: Path, text: str) -> Request:
    """Convert a table of TOML to a Request; file and text are for error messages."""
    allowed = list(Request.__struct_fields__)

    def wrong(key: str, why: str, hint: str = EXAMPLES) -> UserError:
        return UserError(f"{path}:{safe_files.line_of(text, key)}: {why}", hint=hint)

    words = {}
    for key, value in table.items():
        if key not in allowed:
            hint = " ".join(filter(None, [nearest(key, allowed), f"the keys are {', '.join(allowed)}"]))
            raise wrong(key, f"no key is called '{key}'", hint)
        if isinstance(value, list):  # as the command line has it: `1,2` for [1, 2], and 64 for a word `64`
            if not value or any(type(item) not in (str, int) for item in value):
                hint = "whole numbers or words: [1, 2], ['all', 'sqrt']"
                raise wrong(key, f"{key}: the list is empty, or holds what is neither a whole number nor a word", hint)
            words[key] = ",".join(map(str, value))
        else:
            words[key] = str(value) if type(value) is int and key in NUMBERS else value
    return safe_files.converted(words, Request, path=path, text=text, hint=EXAMPLES)


def refuse_file(asked: Request, typed: Request, *, path: Path) -> None:
    """Raise UserError if a word of a sweep file names code, a file or a folder, and the user did not type it."""
    for key in (*FLAGS, "data"):
        text = getattr(asked, key)
        if not text or getattr(typed, key):
            continue
        known = {**TABLES.get(FLAGS.get(key, ""), {}), **training.LEVERS}  # a lever leads nowhere, nor does one alone
        if key == "data" or not all(is_plain(choice.parts[0], known) for choice in split_choices(text)):
            message = f"{path}: {key} = '{text}' names code or a place that is not gcprof's own"
            raise UserError(message, hint=f"if it is meant, type it: --{key} '{text}'")


def is_plain(choice: Choice, table: Mapping[str, str], folder: Path | None = None) -> bool:
    """Whether a choice is in gcprof's tables, with options that no library takes for code or a place.

    Raises UserError for options that cannot be read.
    """
    member = choice.name.partition(":")[2]
    entry = catalogue.listed(choice.name, table)
    if entry is None or (member and not MEMBER.fullmatch(member)):
        return False
    if entry.name == "plan" and "file" not in choice.options:
        return False  # its default is a file in the current folder
    declared = {option.name: option for option in entry.options}
    return all(_is_plain_option(entry, key, text, declared.get(key), folder) for key, text in choice.options.items())


def _is_plain_option(entry: Entry, key: str, text: str, option: Option | None, folder: Path | None) -> bool:
    """Whether the value of an option cannot be a name, except one of gcprof's own."""
    if option is None:
        value = catalogue.literal(text)
        return entry.open and not LOADS.fullmatch(key) and (value is None or isinstance(value, bool | int | float))
    if (entry.name, key) == ("plan", "file"):  # it may be one of the run folder's own plans
        if folder is None:
            return False
        file, plans = Path(text), folder.absolute() / plan_file.FOLDER  # directly in it, and neither is a link
        return ".." not in file.parts and file.absolute().parent == plans and safe_files.is_regular(file)
    return (
        WORDS.fullmatch(text) is not None
        if option.kind == "str"
        else option.kind in catalogue.PLAIN or bool(option.words)
    )
