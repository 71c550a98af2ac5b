"""One point to measure, as plain data; models and strategies are words here."""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import gpu_kinds
from profiler.core.errors import UserError
from profiler.core.gpu_kinds import REHEARSE
from profiler.core.stats import Sampling

Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # two of them add up within 64 bits
Real = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]  # no measurement is larger; its square is still finite
PASSES = ("equality", "flops", "memory", "time")  # each on a fresh model
OPERATORS = "operators"  # a pass of the baseline that predictions are calibrated with
MOST = 100_000  # steps of a kind in a round
OWN = "own"  # the strategy that leaves the checkpoints on which the model calls itself
FAKE = "fake:"  # what the name of a device begins with that is predicted for, and need not be there


class Choice(str):
    """A name with options, written and read everywhere as `segments:k=8,split=balanced`.

    A name may itself hold colons (`torchvision:resnet18`): what follows the last colon is options
    where it holds a `=`. Two equal texts are one choice; `catalogue.resolve` makes the text canonical.
    """

    __slots__ = ()

    @classmethod
    def of(cls, name: str, options: Mapping[str, object]) -> Choice:
        text = ",".join(f"{key}={as_word(value)}" for key, value in options.items())
        return cls(f"{name}:{text}" if text else name)

    @property
    def name(self) -> str:
        return self._halves()[0]

    @property
    def options(self) -> dict[str, str]:
        """The options behind the name. Raises UserError for one without key or value, and for a key given twice."""
        pieces = self._halves()[1].split(",") if self._halves()[1] else []
        pairs = [piece.partition("=") for piece in pieces]
        for key, _, value in pairs:
            if not key or not value:
                message = f"'{self}' has an option without a name or a value"
                raise UserError(message, hint="write name:key=value,key=value")
        keys = [key for key, _, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key, number in Counter(keys).items() if number > 1)
            raise UserError(f"'{self}' gives {twice} twice", hint=f"{twice}=a|b measures both")
        return {key: value for key, _, value in pairs}

    def _halves(self) -> tuple[str, str]:
        name, colon, rest = self.rpartition(":")
        return (name, rest) if colon and "=" in rest else (str(self), "")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How users ask for a field of a case that all cases of a run share, and where they see it.

    The parsing of requests, the keys of sweep files, flags, headings, exported columns and the comparability of runs
    are made from it. Where a field with choices is UNSET, it is the first of them. A switch is a field that is on or
    off; a new one is UNSET where it is off, so that the ids of all cases without it stay as they are.
    """

    key: str = ""  # in a sweep file, and of a flag; "": the field's name
    help: str = ""  # of the flag that a switch has, in every command that takes `switches`; "": it has none
    choices: tuple[str, ...] = ()  # what a word may be; (): anything
    least: int = 0
    most: int | None = None  # of a number
    shown: str = ""  # of a switch, in the headings of tables where it is on; "": nothing
    has_column: bool = False  # of a switch, in exported tables


class Case(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """One point to measure. Its `id` is the same on every machine."""

    model: Choice
    strategy: Choice
    optimizer: Choice
    batch_size: Whole | None  # None: the model makes its own
    device: str
    precision: str = "fp32"  # fp32, bf16, fp16, amp-bf16, amp-fp16
    blocks: Annotated[str | None, Setting()] = None  # patterns of names; None: as the model says, or as they are found
    accumulate: Whole = 1  # micro-batches a step
    keep_gradients: Annotated[
        bool,
        Setting(
            key="keep_grads",
            help="Zero gradients in place: they persist between steps.",
            shown="gradients kept",
            has_column=True,
        ),
    ] = False  # zero them in place between steps instead of dropping them
    repair_batchnorm: Annotated[bool, Setting()] = False
    data: str = "synthetic"  # or "files", read from the directory that the command names
    verify: Annotated[str, Setting(choices=("auto", "off", "strict"))] = "auto"  # auto, off, strict
    seed: Annotated[int, Setting(most=2**63 - 1)] = 0
    warmup: Annotated[Whole, Setting(most=MOST)] = 1
    samples: Annotated[Whole, Setting(least=1, most=MOST)] = 5  # timed steps a round; at least so many with `sampling`
    # these are in the id only where they are set
    sampling: Sampling | UnsetType = UNSET  # until when there are more samples
    parallel: Choice | UnsetType = UNSET  # how several ranks train the model together: ddp, fsdp2
    ranks: Whole | UnsetType = UNSET  # how many, each a process with a batch and a device of its own
    routing: Annotated[str | UnsetType, Setting(choices=("balanced", "worst"))] = UNSET  # predicted; UNSET: balanced

    @property
    def id(self) -> str:
        return hashlib.sha256(encode(self, order="sorted")).hexdigest()[:12]

    @property
    def baseline(self) -> Case:
        """The same point without checkpointing."""
        return msgspec.structs.replace(self, strategy=Choice("none"))

    @property
    def num_ranks(self) -> int:
        return self.ranks or 1

    @property
    def is_predicted(self) -> bool:
        return self.device.startswith(FAKE)

    @property
    def is_rehearsed(self) -> bool:
        """Whether PyTorch's own CUDA code runs the step on a GPU that is not there."""
        return self.device.startswith(REHEARSE)

    @property
    def torch_device(self) -> str:
        """Where torch puts the tensors: a prediction needs no device."""
        return "cpu" if self.is_predicted else gpu_kinds.visible(self.device)

    @property
    def foreseen(self) -> Case:
        """The same point predicted: for the GPU that is rehearsed, else for its kind of device."""
        gpu = Choice(self.device).name.removeprefix(REHEARSE) if self.is_rehearsed else self.twin.device
        return self if self.is_predicted else msgspec.structs.replace(self, device=FAKE + gpu)

    @property
    def twin(self) -> Case:
        """The point that a measurement and its prediction share: the same on the kind of device."""
        device = self.device.removeprefix(FAKE)
        kind = device if device == "cpu" or gpu_kinds.of(device) else "cuda"
        return msgspec.structs.replace(self, device=kind, routing=UNSET)


def _settings() -> tuple[dict[str, Setting], list[str]]:
    """The fields of a case that have a Setting, and the switches among them, in order."""
    kinds = get_type_hints(Case, include_extras=True)
    settings = {
        name: setting
        for name, kind in kinds.items()
        for setting in getattr(kind, "__metadata__", ())
        if isinstance(setting, Setting)
    }
    switches = [name for name in settings if bool in (plain := get_args(kinds[name])[0], *get_args(plain))]
    return settings, switches


SETTINGS, _switches = _settings()
SWITCHES = {name: SETTINGS[name] for name in _switches}


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What a measured row without checkpointing tells the predictions of its model."""

    hidden_bytes: dict[str, Whole]  # what the operators pass gave, by signature
    device_name: str | None = None
    step_seconds: Real | None = None  # the median


class Trial(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One case in one round: what a worker is asked to do."""

    case: Case
    round: Whole = 1
    passes: tuple[str, ...] = PASSES
    digests: dict[str, str] | None = None  # what the baseline's equality pass gave
    calibration: Calibration | None = None  # of a prediction
    data_directory: str | None = None
    limit_seconds: float | None = None  # that each of its stages may take
    is_paired: bool = True  # whether steps without the strategy, where it can be switched off, alternate with its own
    if_own: bool | UnsetType = UNSET  # only where its baseline finds checkpoints that the model calls itself
    least_pairs: Whole | UnsetType = UNSET  # of steps with and without the strategy; of one the round is a first look
    budget: str | UnsetType = UNSET  # of plans: stages of which none can fit it are not timed


def encode(value: Any, *, order: Any = None) -> bytes:
    """Any of gcprof's data as JSON; Choices as text. Raises TypeError for what is none of it."""
    return _encoder(order).encode(value)


def encode_indented(value: Any) -> bytes:
    """Gcprof's data as JSON with one field a line, for a file or a screen of its own."""
    return msgspec.json.format(encode(value), indent=1) + b"\n"


def decode(text: bytes | str, kind: type[Any]) -> Any:
    """JSON as `kind`. Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _decoder(kind).decode(text)  # type: ignore[arg-type]  # classes can be hashed


@cache
def _encoder(order: Any) -> msgspec.json.Encoder:
    return msgspec.json.Encoder(enc_hook=str.__str__, order=order)  # of a Choice its text, of anything else an error


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=operator.call)  # a Choice of its text; no other class is called


def split_choices(text: str) -> list[Choice]:
    """A list as users write it: `none,segments:k=8,split=balanced,all` -> three choices.

    A piece `key=value` without a name belongs to the choice before it; `k=2|4|8` spans an axis.
    """
    words: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if not piece:
            raise UserError(f"'{text}' has an empty item", hint="separate items by single commas")
        if words and "=" in piece and ":" not in piece.partition("=")[0]:
            words[-1] += ("," if "=" in words[-1] else ":") + piece
        else:
            words.append(piece)
    return [choice for word in words for choice in _span(Choice(word))]


def _span(choice: Choice) -> list[Choice]:
    spread: list[dict[str, str]] = [{}]
    for key, value in choice.options.items():
        spread = [{**options, key: alternative} for options in spread for alternative in value.split("|")]
    return [Choice.of(choice.name, options) for options in spread]


def as_word(value: object) -> str:
    """A value as users write it: a switch is `true` or `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
