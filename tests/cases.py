"""The table of docs/cases.md: users' steps that are easily read wrong, what gcprof says, and the truth it is held to.

`python -m tests.cases` writes the page from a run of every case. A case is one entry of CASES: a file of
tests/user_models, the strategies that are asked for, and a function that works the truth out without gcprof.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from profiler.analysis.rows import verdict
from profiler.core.record import Record
from tests.conftest import measured
from tests.pages import DOCS
from tests.plain_steps import Forward, apart, chain, judged, two_steps, under, without_gradient
from tests.user_models import draws, hooks, keeps, modes, no_gradient, own_checkpoint

WARNED = "GCP046"  # what PyTorch warned of, in the words of its version
PAGE = DOCS / "cases.md"
MEMORY = ("saved_bytes", "peak_bytes")
FLOAT, RANDOM_STATE = 4, 5056  # bytes: a number in fp32; the CPU's random state, which a checkpoint keeps

Facts = Mapping[str, Any]  # by the word of TOLD, or a note's code: what the note says, None where it must not be there
TOLD = {  # how a fact is told
    "gradients": "{}",
    "largest_difference": "the largest difference is {:.1e}",
    "num_without_gradient": "{} parameters train without a gradient",
    "num_parameters": "{:,} parameters",
    "saved_bytes": "{:,} bytes are saved",
    "detail": "the reason says: {}",
}


class Case(NamedTuple):
    """A step of a user's, and what is true of it."""

    family: str
    model: str  # the file of tests/user_models, the factory and its options
    strategies: tuple[str, ...]
    truth: Callable[[], dict[str, Facts]]  # by strategy

    @property
    def command(self) -> str:
        """What a user would ask."""
        asked = [strategy for strategy in self.strategies if strategy != "none"] or ["none"]
        return f"gcprof run --model {self.model} --strategies {','.join(asked)}"


def compared(build: Callable[[], Any], ways: Mapping[str, Forward], plain: Forward | None = None) -> dict[str, Facts]:
    """What two plain runs, and one with the checkpoints of each way by hand, say of the gradients."""
    first = two_steps(build, plain)
    again = two_steps(build, plain, update=first[0].gradients)
    steps = {"none": again, **{strategy: two_steps(build, way) for strategy, way in ways.items()}}
    facts: dict[str, Facts] = {}
    for strategy, other in steps.items():
        told = judged(first, again, other)
        amount = {"largest_difference": apart(first, other)} if told == "differ" else {}
        facts[strategy] = {"gradients": told, **amount}
    return facts


def with_facts(found: dict[str, Facts], **more: Facts) -> dict[str, Facts]:
    """The facts of each strategy with those that are added."""
    return {strategy: {**facts, **more.get(strategy, {})} for strategy, facts in found.items()}


def drawn(source: str, name: str) -> dict[str, Facts]:
    found = compared(partial(draws.make, source), {"all": chain()})
    if found["none"]["gradients"] == "not verifiable":
        return with_facts(found, none={"GCP044": "os.urandom"}, all={"detail": "nothing can be verified"})
    return with_facts(found, all={"GCP005": name, "detail": f"draws other numbers from {name}"}) if name else found


def frozen_prefix() -> dict[str, Facts]:
    def plain(net: nn.Module, value: torch.Tensor) -> torch.Tensor:
        value = net.prefix(value)
        for block in net.blocks:
            value = torch.tanh(block(value))
        return net.head(value).mean()

    build = own_checkpoint.prefix
    found = compared(build, {"own": lambda net, value: net(value)}, plain)
    return _with_lost(found, {"none": (build, plain), "own": (build, None)}, noted=("own",))


def no_gradients() -> dict[str, Facts]:
    build = no_gradient.make
    return _with_lost(compared(build, {}), {"none": (build, None)}, noted=("none",))


def _with_lost(
    found: dict[str, Facts], ways: Mapping[str, tuple[Callable[[], Any], Forward | None]], noted: tuple[str, ...]
) -> dict[str, Facts]:
    """Adds the parameters that get no gradient; a note names them where it is to be there."""
    more: dict[str, Facts] = {}
    for strategy, (build, forward) in ways.items():
        module = build()[0]
        lost = without_gradient(module, two_steps(build, forward)[0])
        num = sum(parameter.requires_grad for parameter in module.parameters())
        told = f"{len(lost)} of {num} trainable parameters get no gradient" if strategy in noted else None
        more[strategy] = {"num_without_gradient": len(lost), "GCP045": told}
    return with_facts(found, **more)


def through(net: nn.Module, value: torch.Tensor, call: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The forward of own_checkpoint's blocks by another call than the model's own."""
    value = net.stem(value)
    for block in net.blocks:
        value = call(block, value)
    return net.head(value).mean()


def lossy() -> dict[str, Facts]:
    ways = {"all": partial(through, call=under), "own": lambda net, value: net(value)}
    build = partial(own_checkpoint.wrapped, "lossy", 0.5)
    return compared(build, ways, partial(through, call=lambda block, value: block(value)))


def own_bytes() -> dict[str, Facts]:
    """Blocks' inputs; what each GELU and second layer take; the loss. Under checkpoints, inputs and random states."""
    batch, width, inner, depth = 32, 16, 32, 4
    between = (depth + 1) * batch * width * FLOAT
    within = depth * 2 * batch * inner * FLOAT
    told = f"the model's own checkpoints ({depth} calls in a forward) are switched off"
    return {
        "none": {"saved_bytes": between + within + FLOAT, "GCP047": told},
        "own": {"saved_bytes": between + depth * RANDOM_STATE + FLOAT, "GCP047": None},
    }


def in_mode(factory: str) -> dict[str, Facts]:
    """The layers of dropout and BatchNorm of what the factory returns, and those that are in eval mode."""
    build = getattr(modes, factory)
    layers = [layer for layer in build()[0].modules() if isinstance(layer, (nn.Dropout, nn.BatchNorm1d))]
    resting = [layer for layer in layers if not layer.training]
    told = f"{len(resting)} of {len(layers)} dropout and BatchNorm layers are in eval mode" if resting else None
    found = compared(build, {"all": lambda net, value: chain("layers")(net, value)})
    return with_facts(found, none={"GCP043": told}, all={"GCP043": told})


def hooked() -> dict[str, Facts]:
    return compared(hooks.hooked, {"all": chain("layers", scale=0.7), "first:n=2": chain("layers", count=2, scale=0.7)})


def kept(factory: str) -> dict[str, Facts]:
    build = getattr(keeps, factory)
    found = compared(build, {"all": chain()})
    if factory == "counting":
        return with_facts(found, all={"GCP049": "0.calls, 1.calls, 2.calls"})
    return with_facts(found, all={"detail": "of the second step, while those of the first agree"})


def named() -> dict[str, Facts]:
    module, *_ = modes.named("large", "bc")
    return {"none": {"num_parameters": sum(parameter.numel() for parameter in module.parameters())}}


def watched() -> dict[str, Facts]:
    """ReLU's result, which the last layer takes too, and the loss; not less by the gradient that the forward frees."""
    batch, width = 64, 256
    return {"none": {"saved_bytes": batch * width * FLOAT + FLOAT}}


NUMBERS, BASELINE, MODES = "1 numbers from elsewhere", "2 a broken baseline", "3 train or eval"
HOOKS, SECOND, LOST, FREED = "6 hooks", "7 the second step", "9 words that are lost", "10 what a forward frees"
BOTH = ("none", "all")
CASES = (
    *(
        Case(NUMBERS, f"draws.py:make:source={source}", BOTH, partial(drawn, source, name))
        for source, name in {
            "random": "random",
            "own-python": "0.python",
            "numpy": "numpy.random",
            "own-numpy": "0.numpy",
            "own-torch": "0.torch",
            "file": "draws.OF_THE_FILE",
            "system": "",
            "none": "",
        }.items()
    ),
    Case(BASELINE, "own_checkpoint.py:prefix", ("none", "own"), frozen_prefix),
    Case(BASELINE, "own_checkpoint.py:wrapped:way=lossy,drop=0.5", ("none", "all", "own"), lossy),
    Case(BASELINE, "own_checkpoint.py:wrapped", ("none", "own"), own_bytes),
    Case(BASELINE, "no_gradient.py:make", ("none",), no_gradients),
    *(
        Case(MODES, f"modes.py:{factory}", BOTH, partial(in_mode, factory))
        for factory in ("training", "evaluating", "partly")
    ),
    Case(HOOKS, "hooks.py:hooked", ("none", "all", "first:n=2"), hooked),
    *(
        Case(SECOND, f"keeps.py:{factory}", BOTH, partial(kept, factory))
        for factory in ("counting", "fading", "averaging", "caching")
    ),
    Case(LOST, "modes.py:named:name=large,factory=bc", ("none",), named),
    Case(FREED, "grad_cam.py:make", ("none",), watched),
)


def says(case: Case, truth: Mapping[str, Facts]) -> dict[str, Record]:
    """gcprof's record of each strategy, with the passes that the truth speaks of."""
    path = f"{draws.__file__.removesuffix('draws.py')}{case.model}"
    has_bytes = any(word in facts for facts in truth.values() for word in MEMORY)
    passes = ("equality", "memory") if has_bytes else ("equality",)
    return {strategy: measured(path, strategy, batch_size=None, passes=passes) for strategy in case.strategies}


def wrong(record: Record, facts: Facts) -> Iterator[str]:
    """Each fact that the record does not say."""
    for word, value in facts.items():
        told = _told(record, word)
        if word.startswith("GCP") or word == "detail":
            is_right = told is None if value is None else value in (told or "")
        else:
            is_right = told == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)
        if not is_right:
            yield f"{record.case.strategy}: {word} is {value!r}, and gcprof says {told!r}"


def _told(record: Record, word: str) -> Any:
    if word.startswith("GCP"):
        return next((note.text for note in record.notes if note.code == word), None)
    if word == "gradients":
        return verdict(record)
    owner = next(one for one in (record.equality, record.readings, record.built, record) if hasattr(one, word))
    return getattr(owner, word)


def line(case: Case, records: Mapping[str, Record], truth: Mapping[str, Facts]) -> str:
    """The case's row of the page."""
    file, *_ = case.model.partition(":")
    said = "<br>".join(f"`{strategy}`: {_words(record, truth[strategy])}" for strategy, record in records.items())
    true = "<br>".join(f"`{strategy}`: {_facts(truth[strategy])}" for strategy in records)
    cells = (case.family, f"`{file}`", f"`{case.command}`", said, true)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _words(record: Record, facts: Facts) -> str:
    """Outcome, gradients, the numbers that are asked for, the reason and the notes; without what chance has made."""
    numbers = [TOLD[word].format(_told(record, word)) for word in facts if word in (*MEMORY, "num_parameters")]
    parts = [f"**{record.outcome}**, {verdict(record)}", *numbers, *([record.detail] if record.detail else [])]
    text = "; ".join([*parts, *(f"{note.code} {note.text}" for note in record.notes if note.code != WARNED)])
    if verdict(record) == "not verifiable":
        text = re.sub(r"differ by \S+, worst in \S+:", "differ:", text)
    return text


def _facts(facts: Facts) -> str:
    return "; ".join(
        f"no {word}" if value is None else TOLD.get(word, f"{word} says: {{}}").format(value)
        for word, value in facts.items()
    )


HEAD = """# Cases

Steps of users that are easily read wrong: what gcprof says of each, and what is true. The files are those of
`tests/user_models`. The last column is worked out by `tests/cases.py` without gcprof: by two steps in plain PyTorch
from seeds 0 and 1, run twice as they are and once with `torch.utils.checkpoint` around the same blocks by hand, and
by arithmetic where it is bytes. `tests/test_cases.py` holds the one to the other whenever the tests run. `just cases`
writes this page, each row from the trials that it runs, with all notes but those of PyTorch's own warnings. Modules
that are made by chance are held to plain PyTorch by `just fuzz-modules`.

| family | file of the user | what is asked | what gcprof says | what is true |
|---|---|---|---|---|
"""


def page() -> str:
    """The page, from a run of every case."""
    rows = []
    for case in CASES:
        truth = case.truth()
        rows.append(line(case, says(case, truth), truth))
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
