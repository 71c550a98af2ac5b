"""Names with options as users write them, `segments:k=8,split=balanced`, and lists of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import product

from profiler.core.errors import UserError

LEVERS = {  # in the order of labels, and of how they are applied: whether a step without it can follow on its model
    "chunk-loss": True,
    "micro-batches": False,
    "fused": False,
    "no-foreach": False,
    "8bit": False,
    "bf16-state": False,
    "in-backward": False,
    "offload-inputs": True,
    "expandable-segments": False,
}
JOINT = re.compile(rf"\+(?=(?:{'|'.join(LEVERS)})(?:[:+]|$))")  # not in `selective:save=attention+matmul`


class Choice(str):
    """A name with options, written and read everywhere as `segments:k=8,split=balanced`.

    A name may itself contain colons (`torchvision:resnet18`): the text after the last colon is options only if it
    contains a `=`. Choices of equal text are equal; `catalogue.resolve` makes the text canonical.
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
        """The options by key. Raises UserError for an option without key or value, and for a key given twice."""
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

    @property
    def parts(self) -> tuple[Choice, ...]:
        """A strategy and its levers, `all+micro-batches:n=4+fused`, each by itself."""
        return tuple(map(Choice, JOINT.split(self)))

    def _halves(self) -> tuple[str, str]:
        name, colon, rest = self.rpartition(":")
        return (name, rest) if colon and "=" in rest else (str(self), "")


def split_choices(text: str) -> list[Choice]:
    """Return the choices in a list as users write it: `none,segments:k=8,split=balanced,all` -> three choices.

    A piece `key=value` without a name belongs to the choice before it; `k=2|4|8` gives one choice per value. Raises
    UserError for an empty item.
    """
    words: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if not piece:
            raise UserError(f"'{text}' has an empty item", hint="separate items by single commas")
        if words and "=" in piece and ":" not in piece.partition("=")[0]:
            words[-1] += ("," if "=" in Choice(words[-1]).parts[-1] else ":") + piece
        else:
            words.append(piece)
    spans = (product(*map(_span, Choice(word).parts)) for word in words)
    return [Choice("+".join(parts)) for span in spans for parts in span]


def _span(choice: Choice) -> list[Choice]:
    spread: list[dict[str, str]] = [{}]
    for key, value in choice.options.items():
        spread = [{**options, key: alternative} for options in spread for alternative in value.split("|")]
    return [Choice.of(choice.name, options) for options in spread]


def as_word(value: object) -> str:
    """Return a value as users write it: a boolean as `true` or `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
