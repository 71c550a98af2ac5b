"""A case, one point to measure, as plain data; models and strategies are only named, not imported."""

from __future__ import annotations

import hashlib
import operator
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import gpu_specs
from profiler.core.stats import Sampling
from profiler.core.units import Choice as Choice
from profiler.core.units import as_word as as_word
from profiler.core.units import split_choices as split_choices

Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # the sum of two fits 64 bits
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]  # no measurement is larger; its square is still finite
PASSES = ("equality", "flops", "memory", "time")  # each on a fresh model
OPERATORS = "operators"  # an additional pass of the baseline, which calibrates predictions
MOST = 100_000  # limit of warm-up steps and of timed steps per round
WITH_SWITCH = ("chunk-loss", "offload-inputs")  # levers that can be switched off between two steps of a model
WITHOUT_SWITCH = "compile-budget"  # the strategy that cannot: compiled code stays as it is
OWN = "own"  # the strategy that leaves the checkpoints on that the model itself calls


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How users set a case field that all cases of a run share, and where it is shown.

    The parsing of requests, the keys of sweep files, flags, headings, exported columns and the comparability of runs
    are derived from it. UNSET in a field with choices means the first choice. A switch is a boolean field; a new switch
    must be UNSET when it is off, so that the ids of all cases without it stay as they are.
    """

    key: str = ""  # the key in sweep files and the flag's name; "": the field's name
    help: str = ""  # help of a switch's flag
    choices: tuple[str, ...] = ()  # allowed words; (): any
    least: int = 0
    most: int | None = None  # largest allowed number
    shown: str = ""  # text in table headings while the switch is on; "": nothing
    has_column: bool = False  # whether the switch is a column of exported tables


class Case(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """One point to measure. Its `id` is the same on every machine."""

    model: Choice
    strategy: Choice
    optimizer: Choice
    batch_size: Whole | None  # None: the model makes its own batch
    device: str
    precision: str = "fp32"  # fp32, bf16, fp16, amp-bf16, amp-fp16
    blocks: Annotated[str | None, Setting()] = None  # patterns of names; None: declared by the model, else detected
    accumulate: Whole = 1  # micro-batches per step
    keep_gradients: Annotated[
        bool,
        Setting(
            key="keep_grads",
            help="Zero gradients in place: they persist between steps.",
            shown="gradients kept",
            has_column=True,
        ),
    ] = False  # zero gradients in place between steps instead of freeing them
    repair_batchnorm: Annotated[bool, Setting(help="Keep the recompute from updating BatchNorm's statistics.")] = False
    data: str = "synthetic"  # or "files", read from the directory that the command names
    verify: Annotated[str, Setting(choices=("auto", "off", "strict"))] = "auto"  # auto, off, strict
    seed: Annotated[int, Setting(most=2**63 - 1)] = 0
    warmup: Annotated[Whole, Setting(most=MOST)] = 1
    samples: Annotated[Whole, Setting(least=1, most=MOST)] = 5  # timed steps per round; with `sampling` the minimum
    # the fields below are part of the id only if they are set
    sampling: Sampling | UnsetType = UNSET  # when to stop sampling; UNSET: after exactly `samples`
    parallel: Choice | UnsetType = UNSET  # how several ranks train the model: ddp, fsdp2
    ranks: Whole | UnsetType = UNSET  # number of ranks, each a process with its own batch and device
    routing: Annotated[str | UnsetType, Setting(choices=("balanced", "worst"))] = UNSET  # predicted; UNSET: balanced
    # of a script of the user's own; `model` is then the class that it trains, and `batch_size` is not known
    command: tuple[str, ...] | UnsetType = UNSET  # of a script: its words, with the values of -L filled in
    values: tuple[tuple[str, str], ...] | UnsetType = UNSET  # of a script: those of -L, by name
    process: Whole | UnsetType = UNSET  # of a script: its place among the command's processes with a GPU, by rank
    levers: tuple[Choice, ...] | UnsetType = UNSET  # what else changes the step, in their table's order

    @property
    def id(self) -> str:
        return hashlib.sha256(encode(self, order="sorted")).hexdigest()[:12]

    @property
    def baseline(self) -> Case:
        """The same case without checkpointing and levers."""
        return msgspec.structs.replace(self, strategy=Choice("none"), levers=UNSET)

    @property
    def uncheckpointed(self) -> Case:
        """The same case without checkpointing, its levers left on."""
        return msgspec.structs.replace(self, strategy=Choice("none"))

    @property
    def label(self) -> Choice:
        """The strategy and the levers as users write them: `all+chunk-loss+fused`."""
        return Choice("+".join([self.strategy, *self.levers])) if self.levers else self.strategy

    @property
    def has_switch(self) -> bool:
        """Whether its strategy and levers can be switched off between two steps of one model."""
        return self.strategy.name != WITHOUT_SWITCH and all(lever.name in WITH_SWITCH for lever in self.levers or ())

    def under(self, label: Choice) -> Case:
        """Return the same case under the strategy and the levers of a canonical label."""
        strategy, *levers = label.parts
        return msgspec.structs.replace(self, strategy=strategy, levers=tuple(levers) or UNSET)

    @property
    def num_ranks(self) -> int:
        return self.ranks or 1

    @property
    def is_predicted(self) -> bool:
        return gpu_specs.parse(self.device).is_predicted

    @property
    def is_rehearsed(self) -> bool:
        """Whether the step runs PyTorch's own CUDA code on a device that does no arithmetic."""
        return gpu_specs.parse(self.device).is_rehearsed

    @property
    def has_estimated_times(self) -> bool:
        """Whether its step's seconds, if it has any, are those of the roofline model: no device here computes it."""
        return bool(gpu_specs.parse(self.device).prefix)

    @property
    def torch_device(self) -> str:
        """The torch device of the tensors; "cpu" for a prediction, which needs no device."""
        return gpu_specs.parse(self.device).torch_device

    @property
    def foreseen(self) -> Case:
        """The prediction of this case: for the GPU that it rehearses, else for its kind of device."""
        return msgspec.structs.replace(self, device=str(gpu_specs.parse(self.device).foreseen))

    @property
    def twin(self) -> Case:
        """The key that a case and its prediction share: the case on its kind of device, `routing` unset."""
        return msgspec.structs.replace(self, device=gpu_specs.parse(self.device).twin, routing=UNSET)


_kinds = get_type_hints(Case, include_extras=True)
SETTINGS: dict[str, Setting] = {  # of each field that has one, in their order
    name: setting
    for name, kind in _kinds.items()
    for setting in getattr(kind, "__metadata__", ())
    if isinstance(setting, Setting)
}
SWITCHES = {  # those that are on or off
    name: setting
    for name, setting in SETTINGS.items()
    if bool in (get_args(_kinds[name])[0], *get_args(get_args(_kinds[name])[0]))
}


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a baseline that calibrate the predictions of its model."""

    hidden_bytes: dict[str, Whole]  # from the operators pass, by operator signature
    device_name: str | None = None
    step_seconds: Real | None = None  # the median


Key = tuple[Case, int]  # of a trial and of its record: the case and the round


class Trial(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One case in one round: what a worker is asked to run."""

    case: Case
    round: Whole = 1
    passes: tuple[str, ...] = PASSES
    digests: dict[str, str] | None = None  # of the baseline, from its equality pass
    calibration: Calibration | None = None  # for a prediction
    data_directory: str | None = None
    limit_seconds: float | None = None  # time limit of each stage of the trial (`--stage-limit`)
    is_paired: bool = True  # whether steps with and without the strategy alternate, if it can be switched off
    if_own: bool | UnsetType = UNSET  # run it only if the baseline finds that the model itself calls checkpoints
    least_pairs: Whole | UnsetType = UNSET  # least pairs of a step with and one without the strategy; 1: a first look
    budget: str | UnsetType = UNSET  # for plans: stages are not timed if no plan can fit this budget

    @property
    def key(self) -> Key:
        """What tells it from the other trials of a run."""
        return self.case, self.round


def encode(value: Any, *, order: Any = None) -> bytes:
    """Return any of gcprof's data as JSON, a Choice as its text. Raises TypeError for any other type."""
    return _encoder(order).encode(value)


def encode_indented(value: Any) -> bytes:
    """Return gcprof's data as JSON with one field per line, for a file or the screen."""
    return msgspec.json.format(encode(value), indent=1) + b"\n"


def decode(text: bytes | str, kind: type[Any]) -> Any:
    """Return JSON decoded as `kind`. Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _decoder(kind).decode(text)  # type: ignore[arg-type]  # classes can be hashed


@cache
def _encoder(order: Any) -> msgspec.json.Encoder:
    return msgspec.json.Encoder(enc_hook=str.__str__, order=order)  # the text of a Choice; an error for any other type


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=operator.call)  # makes a Choice from its text; no other class gets here
