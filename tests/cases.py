"""The table of docs/tables/cases.md: users' steps that are easily read wrong, what gcprof says, and what is true.

`python -m tests.cases` writes the page from a run of every case. A case is one entry of CASES: a file of
tests/user_models, the strategies that are asked for, a function that works the truth out by plain PyTorch and
arithmetic, without gcprof, and whether `gcprof predict` is asked. A truth is, by strategy, what is to be said of it: by
a word of a record, or by a note's code what the note says, None where it must not be there.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from profiler.analysis.rows import verdict
from profiler.core.case import Case, Choice, Trial
from profiler.core.record import Record
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from tests import make
from tests.pages import DOCS
from tests.plain_steps import Forward, apart, chain, judged, two_steps, under
from tests.user_models import broken, causes, draws, experts, hooks, keeps, overwritten, own_checkpoint

PAGE = DOCS / "tables" / "cases.md"
FILES = Path(__file__).parent / "user_models"
Facts = Mapping[str, Any]


class Answer(NamedTuple):
    """What is said of a strategy: in words for the page, and each fact that is asked for."""

    words: str
    told: Facts


class Step(NamedTuple):
    family: str
    model: str  # the file of tests/user_models, the factory and its options
    strategies: tuple[str, ...]
    truth: Callable[[], dict[str, Facts]]  # by strategy
    is_predicted: bool = False  # `gcprof predict` is asked, else `gcprof run`

    @property
    def command(self) -> str:
        asked = [strategy for strategy in self.strategies if strategy != "none"] or ["none"]
        verb = "predict --device cpu" if self.is_predicted else "run"
        return f"gcprof {verb} --model {self.model} --strategies {','.join(asked)}"


WARNED = "GCP046"  # what PyTorch warned of, in the words of its version
PASSES = {  # the pass that tells of these; else equality alone
    "saved_bytes": "memory",
    "GCP054": "flops",
}


def answers(step: Step, truth: Mapping[str, Facts]) -> dict[str, Answer]:
    return {strategy: _answer(step, strategy, truth[strategy]) for strategy in step.strategies}


def _answer(step: Step, strategy: str, facts: Facts) -> Answer:
    device = "fake:cpu" if step.is_predicted else "cpu"
    model = Choice(f"{FILES}/{step.model}")
    case = make.case(strategy, model=model, device=device, batch_size=None, warmup=0, samples=1)
    if step.is_predicted:
        record = attempt(Trial(case=case), on_pass=lambda name: None, by=lambda trial, on_pass: predict(trial))
    else:
        passes = tuple(dict.fromkeys(["equality", *(PASSES[word] for word in facts if word in PASSES)]))
        trial = Trial(case=case, passes=passes, digests=_digests(case.baseline) if strategy != "none" else None)
        record = attempt(trial, on_pass=lambda name: None, by=measure)
    told = {word: _told(record, word) for word in facts}
    return Answer(_words(record, told), told)


@cache
def _digests(baseline: Case) -> dict[str, str] | None:
    equality = attempt(Trial(case=baseline, passes=("equality",)), on_pass=lambda name: None, by=measure).equality
    return equality.digests if equality else None


def _told(record: Record, word: str) -> Any:
    if word.startswith("GCP"):
        return next((note.text for note in record.notes if note.code == word), None)
    if word == "gradients":
        return verdict(record)
    parts = (record.equality, record.readings, record.built, record)
    return next((getattr(part, word) for part in parts if hasattr(part, word)), None)


def _words(record: Record, told: Facts) -> str:
    """Outcome, gradients, the numbers that are asked for, the reason and the notes; without what chance has made."""
    gradients = [verdict(record)] if record.equality else []
    numbers = [f"{told['saved_bytes']:,} saved_bytes"] if told.get("saved_bytes") else []
    parts = [", ".join([f"**{record.outcome}**", *gradients]), *numbers, *([record.detail] if record.detail else [])]
    text = "; ".join([*parts, *(f"{note.code} {note.text}" for note in record.notes if note.code != WARNED)])
    if verdict(record) == "not verifiable":
        text = re.sub(r"differ by \S+, worst in \S+:", "differ:", text)
    return text


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
    return {strategy: {**facts, **more.get(strategy, {})} for strategy, facts in found.items()}


def drawn(source: str, name: str) -> dict[str, Facts]:
    found = compared(partial(draws.make, source), {"all": chain()})
    if found["none"]["gradients"] == "not verifiable":
        return with_facts(found, none={"GCP044": "os.urandom"}, all={"detail": "nothing can be verified"})
    return with_facts(found, all={"GCP005": name, "detail": f"draws different numbers from {name}"}) if name else found


def written_over() -> dict[str, Facts]:
    """In float64, and each block with a matrix of its own, which nothing writes over: `all` has these gradients."""
    torch.manual_seed(0)
    module, (inputs, targets), loss = overwritten.on_ctx()
    loss(module(inputs), targets).backward()
    wrong = [parameter.grad.double() for parameter in module.parameters()]
    module.zero_grad()
    value = inputs.double()
    for block in module.double():
        value = torch.tanh(block.fc(value) @ block.host[0].double())
    loss(value, targets.double()).backward()
    right = [parameter.grad for parameter in module.parameters()]
    pairs = zip(right, wrong, strict=True)
    amount = max(float((one - two).abs().max() / max(one.abs().max(), two.abs().max())) for one, two in pairs)
    none = {"outcome": "invalid", "detail": f"wrong by {amount:.1e}"}
    return {"none": none, "all": {"gradients": "differ", "detail": "it is `none` that is wrong"}}


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


def kept(factory: str) -> dict[str, Facts]:
    build = getattr(keeps, factory)
    if factory == "counting":
        found = compared(build, {"all": chain(), "first:n=2": chain(count=2)})
        moved = {"all": {"GCP049": "0.calls, 1.calls, 2.calls"}, "first:n=2": {"GCP049": "0.calls, 1.calls: a step"}}
        return with_facts(found, **moved)
    found = compared(build, {"all": chain()})
    return with_facts(found, all={"detail": "of the second step, while those of the first agree"})


def overlooked(kind: str) -> dict[str, Facts]:
    """A layer's term is multiplied by how often it has run. Its forward is the third under `all`, else the second.

    What is computed from it is computed anew in the recompute, the fourth; a plain number that is saved is the third's.
    """
    wrong, right = {"complex": (4, 2), "optimizer": (3, 2)}[kind]
    all_facts = {"gradients": "differ", "largest_difference": (wrong - right) / wrong}
    return {"none": {"gradients": "bit-equal"}, "all": all_facts}


def fails() -> dict[str, Facts]:
    with pytest.raises(CheckpointError):
        two_steps(partial(causes.make, "cached"), chain())
    cause = "the forward changes 0.cache.keys, 1.cache.keys, which the recompute finds changed"
    return {"none": {"outcome": "ok"}, "all": {"outcome": "failed", "detail": cause}}


def routed() -> dict[str, Facts]:
    """Under `all` each expert's load is counted in the forward and in the recompute."""
    found = compared(experts.make, {"all": chain()})
    return with_facts(found, all={"buffers_difference": 1 / 2, "GCP004": "(0.load, 1.load, 2.load)"})


def breaking() -> dict[str, Facts]:
    with pytest.raises(RuntimeError) as raised:
        two_steps(broken.no_product)
    last = raised.traceback[-1]
    detail = f"RuntimeError: {raised.value} ({last.path.name}:{last.lineno + 1})"
    return {"none": {"outcome": "failed", "detail": detail}}


# --- bytes

FLOAT, RANDOM_STATE = 4, 5056  # bytes: a number in fp32; the CPU's random state, which a checkpoint keeps


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


def trained_apart() -> dict[str, Facts]:
    """The gradients that the first layer gets within the forward; tanh's result, which square takes too; the loss."""
    batch, width = 64, 32
    saved = (width * width + width + batch * width + 1) * FLOAT
    return {"none": {"saved_bytes": saved}, "all": {"saved_bytes": saved + RANDOM_STATE}}


def packed() -> dict[str, Facts]:
    """Halves of what is saved: the inputs of layers and squares, and the weights but the first, which is not needed."""
    batch, width, layers = 64, 128, 3
    saved = 2 * layers * batch * width * FLOAT + (layers - 1) * width * width * FLOAT
    return {"none": {"saved_bytes": saved // 2 + FLOAT}}


def on_ctx() -> dict[str, Facts]:
    """Of each of four blocks the input of Square, beside the inputs of checkpoints: all are (batch, width)."""
    one = 4 * 8 * FLOAT
    inputs = 3 * one  # of all blocks but the first, whose is the batch
    saved = 4 * one + inputs + one + 4 * RANDOM_STATE + FLOAT  # and the last result, which the loss saves
    return {"all": {"saved_bytes": saved, "GCP054": f"{4 * one} B are attributes of ctx"}}


ELSEWHERE, BASELINE, PACKED = "1 numbers from elsewhere", "2 a broken baseline", "3 saved_tensors_hooks"
HOOKS, SECOND, OVERLOOKED = "4 hooks", "5 the second step", "6 what is compared"
FREED, CAUSES, ROUTED = "7 what a forward frees", "8 causes by name", "9 experts"
BOTH = ("none", "all")
HOOKED = {"all": chain("layers", scale=0.7), "first:n=2": chain("layers", count=2, scale=0.7)}
GATHERED: dict[str, Facts] = {"none": {"outcome": "skipped", "detail": "depends on its data (aten.nonzero"}}
CASES = (
    *(
        Step(ELSEWHERE, f"draws.py:make:source={source}", BOTH, partial(drawn, source, name))
        for source, name in {
            "random": "random",
            "own-numpy": "0.numpy",
            "file": "draws.OF_THE_FILE",
            "system": "",
            "none": "",
        }.items()
    ),
    Step(BASELINE, "own_checkpoint.py:wrapped:way=lossy,drop=0.5", ("none", "all", "own"), lossy),
    Step(BASELINE, "own_checkpoint.py:wrapped", ("none", "own"), own_bytes),
    Step(BASELINE, "overwritten.py:on_ctx", BOTH, written_over),
    Step(PACKED, "saved_hooks.py:make:hooks=half", ("none",), packed),
    Step(PACKED, "saved_hooks.py:make:hooks=half", ("none",), packed, is_predicted=True),
    Step(HOOKS, "hooks.py:hooked", ("none", "all", "first:n=2"), partial(compared, hooks.hooked, HOOKED)),
    Step(SECOND, "keeps.py:counting", (*BOTH, "first:n=2"), partial(kept, "counting")),
    *(Step(SECOND, f"keeps.py:{factory}", BOTH, partial(kept, factory)) for factory in ("averaging", "caching")),
    *(
        Step(OVERLOOKED, f"what_is_trained.py:make:kind={kind}", BOTH, partial(overlooked, kind))
        for kind in ("complex", "optimizer")
    ),
    Step(FREED, "gradients.py:apart", BOTH, trained_apart),
    Step(FREED, "gradients.py:apart", BOTH, trained_apart, is_predicted=True),
    Step(CAUSES, "causes.py:make:kind=cached", BOTH, fails),
    Step(CAUSES, "causes.py:make:kind=squaring", ("all",), on_ctx),
    Step(ROUTED, "experts.py:make", BOTH, routed),
    Step(ROUTED, "data_dependent.py:positive", ("none",), lambda: GATHERED, is_predicted=True),
    Step(CAUSES, "broken.py:no_product", ("none",), breaking),
)


def wrong(told: Facts, facts: Facts) -> dict[str, Any]:
    """What is told in place of each fact that is not told."""

    def is_told(word: str, value: Any) -> bool:
        if word.startswith("GCP") or word == "detail":
            return told[word] is None if value is None else value in (told[word] or "")
        return bool(told[word] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value))

    return {word: told[word] for word, value in facts.items() if not is_told(word, value)}


def line(case: Step, answers: Mapping[str, Answer], truth: Mapping[str, Facts]) -> str:
    file, *_ = case.model.partition(":")
    said = "<br>".join(f"`{strategy}`: {answer.words}" for strategy, answer in answers.items())
    true = "<br>".join(f"`{strategy}`: {_facts(truth[strategy])}" for strategy in answers)
    cells = (case.family, f"`{file}`", f"`{case.command}`", said, true)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _facts(facts: Facts) -> str:
    words = {str: "{0}: {1}", int: "{1:,} {0}", float: "{0} {1:.1e}", type(None): "no {0}"}
    return "; ".join(words[type(value)].format(word, value) for word, value in facts.items())


HEAD = """# Cases

Steps of users that are easily read wrong: what gcprof says of each, and what is true. The files are those of
`tests/user_models`. The last column is worked out without gcprof: in `tests/cases.py` by two steps in plain
PyTorch from seeds 0 and 1, run twice as they are and once with `torch.utils.checkpoint` around the same blocks by hand,
by arithmetic, or by PyTorch's own allocator. `tests/test_documentation.py` holds the one to the other whenever it runs.
`just cases` writes this page, each row from the trials that it runs, with all notes but those of PyTorch's own
warnings. Modules that are made by chance are held to plain PyTorch by `just fuzz-modules`.

| family | file of the user | what is asked | what gcprof says | what is true |
|---|---|---|---|---|
"""


if __name__ == "__main__":
    truths_of = [(case, case.truth()) for case in CASES]
    rows = [line(case, answers(case, truth), truth) for case, truth in truths_of]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
