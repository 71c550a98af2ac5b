"""The table of docs/tables/cases.md: users' steps that are easily read wrong, what gcprof says, and what is true.

`python -m tests.cases` writes the page from a run of every case. A case is one entry of CASES: a file of
tests/user_models, the strategies that are asked for, a function of `tests.case_truths` that works the truth out without
gcprof, and whether `gcprof predict` is asked.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profiler.analysis.rows import verdict
from profiler.core.case import Case, Choice, Trial
from profiler.core.record import Record
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from tests import case_truths as truths
from tests import make
from tests.case_truths import Facts
from tests.pages import DOCS

PAGE = DOCS / "tables" / "cases.md"
FILES = Path(__file__).parent / "user_models"


class Answer(NamedTuple):
    """What is said of a strategy: in words for the page, and each fact that is asked for."""

    words: str
    told: Facts


class Step(NamedTuple):
    """A step of a user's, and what is true of it."""

    family: str
    model: str  # the file of tests/user_models, the factory and its options
    strategies: tuple[str, ...]
    truth: Callable[[], dict[str, Facts]]  # by strategy
    is_predicted: bool = False  # `gcprof predict` is asked, else `gcprof run`

    @property
    def command(self) -> str:
        """What a user would ask."""
        asked = [strategy for strategy in self.strategies if strategy != "none"] or ["none"]
        verb = "predict --device cpu" if self.is_predicted else "run"
        return f"gcprof {verb} --model {self.model} --strategies {','.join(asked)}"


WARNED = "GCP046"  # what PyTorch warned of, in the words of its version
PASSES = {  # the pass that tells of these; else equality alone
    "saved_bytes": "memory",
    "GCP054": "flops",
}


def answers(step: Step, truth: Mapping[str, Facts]) -> dict[str, Answer]:
    """What gcprof says of each strategy."""
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


ELSEWHERE, BASELINE, PACKED = "1 numbers from elsewhere", "2 a broken baseline", "3 saved_tensors_hooks"
HOOKS, SECOND, OVERLOOKED = "4 hooks", "5 the second step", "6 what is compared"
FREED, CAUSES, ROUTED = "7 what a forward frees", "8 causes by name", "9 experts"
BOTH = ("none", "all")
CASES = (
    *(
        Step(ELSEWHERE, f"draws.py:make:source={source}", BOTH, partial(truths.drawn, source, name))
        for source, name in {
            "random": "random",
            "own-numpy": "0.numpy",
            "file": "draws.OF_THE_FILE",
            "system": "",
            "none": "",
        }.items()
    ),
    Step(BASELINE, "own_checkpoint.py:wrapped:way=lossy,drop=0.5", ("none", "all", "own"), truths.lossy),
    Step(BASELINE, "own_checkpoint.py:wrapped", ("none", "own"), truths.own_bytes),
    Step(BASELINE, "overwritten.py:on_ctx", BOTH, truths.written_over),
    Step(PACKED, "saved_hooks.py:make:hooks=half", ("none",), truths.packed),
    Step(PACKED, "saved_hooks.py:make:hooks=half", ("none",), truths.packed, is_predicted=True),
    Step(HOOKS, "hooks.py:hooked", ("none", "all", "first:n=2"), truths.hooked),
    *(
        Step(SECOND, f"keeps.py:{factory}", BOTH, partial(truths.kept, factory))
        for factory in ("counting", "averaging")
    ),
    *(
        Step(OVERLOOKED, f"what_is_trained.py:make:kind={kind}", BOTH, partial(truths.overlooked, kind))
        for kind in ("complex", "optimizer")
    ),
    Step(FREED, "inner_backward.py:make", BOTH, truths.trained_apart),
    Step(FREED, "inner_backward.py:make", BOTH, truths.trained_apart, is_predicted=True),
    Step(CAUSES, "causes.py:cached", BOTH, truths.fails),
    Step(CAUSES, "causes.py:squaring", ("all",), truths.on_ctx),
    Step(ROUTED, "experts.py:make", BOTH, truths.routed),
    Step(ROUTED, "data_dependent.py:positive", ("none",), truths.data_dependent, is_predicted=True),
    Step(CAUSES, "breaks.py:make", ("none",), truths.breaking),
)


def wrong(told: Facts, facts: Facts) -> dict[str, Any]:
    """What is told in place of each fact that is not told."""

    def is_told(word: str, value: Any) -> bool:
        if word.startswith("GCP") or word == "detail":
            return told[word] is None if value is None else value in (told[word] or "")
        return bool(told[word] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value))

    return {word: told[word] for word, value in facts.items() if not is_told(word, value)}


def line(case: Step, answers: Mapping[str, Answer], truth: Mapping[str, Facts]) -> str:
    """The case's row of the page."""
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
`tests/user_models`. The last column is worked out without gcprof: in `tests/case_truths.py` by two steps in plain
PyTorch from seeds 0 and 1, run twice as they are and once with `torch.utils.checkpoint` around the same blocks by hand,
by arithmetic, or by PyTorch's own allocator. `tests/test_cases.py` holds the one to the other whenever the tests run.
`just cases` writes this page, each row from the trials that it runs, with all notes but those of PyTorch's own
warnings. Modules that are made by chance are held to plain PyTorch by `just fuzz-modules`.

| family | file of the user | what is asked | what gcprof says | what is true |
|---|---|---|---|---|
"""


if __name__ == "__main__":
    truths_of = [(case, case.truth()) for case in CASES]
    rows = [line(case, answers(case, truth), truth) for case, truth in truths_of]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
