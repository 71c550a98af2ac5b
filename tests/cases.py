"""The table of docs/tables/cases.md: users' steps that are easily read wrong, what gcprof says, and what is true.

`python -m tests.cases` writes the page from a run of every case. A case is one entry of CASES: a file of
tests/user_models, the strategies that are asked for, a function of `tests.case_truths` or `tests.case_bytes` that works
the truth out without gcprof, and who of `tests.case_answers` is asked where it is not `gcprof run`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profiler.core.case import Choice
from tests.case_answers import TOLD, Answer, explained, one_way, predicted, remedied, run
from tests.case_bytes import (
    FLOAT,
    better,
    calls,
    in_a_dict,
    in_chunks,
    kept_means,
    left,
    loaded,
    on_ctx,
    own_bytes,
    packed,
    sent,
    towers,
    trained_apart,
    watched,
)
from tests.case_truths import (
    Facts,
    beside_the_model,
    breaking,
    by_its_level,
    counted_twice,
    data_dependent,
    drawn,
    fails,
    frozen_prefix,
    hooked,
    imported,
    in_a_dataclass,
    in_mode,
    kept,
    lossy,
    named,
    no_gradients,
    overlooked,
    routed,
    under_autocast,
    unknown_operator,
    written_over,
)
from tests.pages import DOCS

PAGE = DOCS / "tables" / "cases.md"
FILES = Path(__file__).parent / "user_models"


class Case(NamedTuple):
    """A step of a user's, and what is true of it."""

    family: str
    model: str  # the file of tests/user_models, the factory and its options
    strategies: tuple[str, ...]
    truth: Callable[[], dict[str, Facts]]  # by strategy
    ask: Callable[[Choice, str, Facts], Answer] | None = None  # `run` where it is None

    @property
    def command(self) -> str:
        """What a user would ask."""
        asked = [strategy for strategy in self.strategies if strategy != "none"] or ["none"]
        if self.ask in (explained, remedied):
            return f"gcprof explain {self.model} --strategy {asked[0]} --device cpu"
        if self.ask in (predicted, one_way):
            routing = " --routing worst" if self.ask is one_way else ""
            return f"gcprof predict {self.model} --strategies {','.join(asked)} --device cpu{routing}"
        more = "".join(f" --{name} '{value}'" for name, value in getattr(self.ask, "keywords", {}).items())
        return f"gcprof run --model {self.model} --strategies {','.join(asked)}{more}"


ELSEWHERE, BASELINE, MODES = "1 numbers from elsewhere", "2 a broken baseline", "3 train or eval"
FLOORS, PACKED, HOOKS, SECOND = "4 the chosen blocks", "5 saved_tensors_hooks", "6 hooks", "7 the second step"
OVERLOOKED, LOST, FREED = "8 what is compared", "9 words that are lost", "10 what a forward frees"
REMEDIED, CAUSES, GROWS, CALLS = "11 remedies", "12 causes by name", "13 memory that grows", "14 calls"
ROUTED, FAILURES, ADDED = "15 experts", "16 failures and factories", "17 what gcprof runs besides"
BOTH = ("none", "all")
CASES = (
    *(
        Case(ELSEWHERE, f"draws.py:make:source={source}", BOTH, partial(drawn, source, name))
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
    Case(BASELINE, "overwritten.py:on_ctx", BOTH, written_over),
    *(
        Case(MODES, f"modes.py:{factory}", BOTH, partial(in_mode, factory))
        for factory in ("training", "evaluating", "partly")
    ),
    Case(FLOORS, "one_layer.py:one", ("all",), better, explained),
    Case(FLOORS, "body_in_a_dict.py:make", ("none",), in_a_dict),
    Case(PACKED, "saved_hooks.py:make:hooks=half", ("none",), packed),
    Case(PACKED, "saved_hooks.py:make:hooks=half", ("none",), packed, predicted),
    Case(HOOKS, "hooks.py:hooked", ("none", "all", "first:n=2"), hooked),
    *(
        Case(SECOND, f"keeps.py:{factory}", BOTH, partial(kept, factory))
        for factory in ("counting", "fading", "averaging", "caching")
    ),
    *(
        Case(OVERLOOKED, f"what_is_trained.py:make:kind={kind}", BOTH, partial(overlooked, kind))
        for kind in ("complex", "optimizer", "subclass", "buffer")
    ),
    *(
        Case(OVERLOOKED, f"what_is_trained.py:make:kind={kind}", BOTH, partial(beside_the_model, kind))
        for kind in ("loss", "input")
    ),
    Case(LOST, "modes.py:named:name=large,factory=bc", ("none",), named),
    Case(FREED, "grad_cam.py:make", ("none",), watched),
    Case(FREED, "inner_backward.py:make", BOTH, trained_apart),
    Case(FREED, "inner_backward.py:make", BOTH, trained_apart, predicted),
    Case(REMEDIED, "large_vocabulary.py:make", ("none",), in_chunks, remedied),
    Case(REMEDIED, "frozen_tower.py:make", ("none",), towers),
    Case(CAUSES, "causes.py:cached", BOTH, partial(fails, "cached", "0.cache.keys, 1.cache.keys")),
    Case(CAUSES, "causes.py:counting", BOTH, partial(fails, "counting", "0.calls, 1.calls")),
    Case(CAUSES, "causes.py:marked", BOTH, counted_twice),
    Case(CAUSES, "causes.py:squaring", ("all",), on_ctx),
    Case(CAUSES, "outside_of_blocks.py:fast", BOTH, by_its_level, partial(run, blocks="base.blocks.*")),
    *(
        Case(GROWS, f"grows.py:make:how={how}", ("none",), partial(left, nbytes))
        for how, nbytes in {"outputs": 8 * 4 * FLOAT, "buffer": 8 * 4 * FLOAT, "queue": None, "nothing": None}.items()
    ),
    Case(GROWS, "keeps.py:averaging", BOTH, kept_means),
    Case(CALLS, "marked_loop.py:make", ("none", "segments:k=3"), calls),
    Case(ROUTED, "experts.py:make", BOTH, routed),
    *(
        Case(
            ROUTED,
            f"experts.py:make:batch_size=96,width=64,way={way},sent={there}",
            ("none",),
            partial(sent, way, there),
            predicted if there == "balanced" else one_way,
        )
        for way in ("masked", "two")
        for there in ("balanced", "worst")
    ),
    Case(ROUTED, "data_dependent.py:positive", ("none",), data_dependent, predicted),
    Case(ROUTED, "custom_operator.py:make", ("none",), unknown_operator, predicted),
    Case(FAILURES, "breaks.py:make", ("none",), breaking),
    Case(FAILURES, "elsewhere.py:make", ("none",), imported),
    Case(FAILURES, "elsewhere.py:training", ("none",), imported),
    Case(FAILURES, "dataclass_batch.py:make", BOTH, in_a_dataclass),
    Case(FAILURES, "from_data.py:make:source=shuffled", ("none",), loaded, predicted),
    Case(ADDED, "adapter.py:make", ("none",), under_autocast, partial(run, precision="amp-bf16")),
)


def says(case: Case, truth: Mapping[str, Facts]) -> dict[str, Answer]:
    """What gcprof says of each strategy."""
    model = Choice(f"{FILES}/{case.model}")
    return {strategy: (case.ask or run)(model, strategy, truth[strategy]) for strategy in case.strategies}


def wrong(told: Facts, facts: Facts) -> list[str]:
    """Each fact that is not what is told."""
    return [
        f"{word} is {value!r}, and gcprof says {told[word]!r}"
        for word, value in facts.items()
        if not _is_told(word, value, told[word])
    ]


def _is_told(word: str, value: Any, told: Any) -> bool:
    if word.startswith("GCP") or word == "detail":
        return told is None if value is None else value in (told or "")
    return bool(told == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value))


def line(case: Case, answers: Mapping[str, Answer], truth: Mapping[str, Facts]) -> str:
    """The case's row of the page."""
    file, *_ = case.model.partition(":")
    said = "<br>".join(f"`{strategy}`: {answer.words}" for strategy, answer in answers.items())
    true = "<br>".join(f"`{strategy}`: {_facts(truth[strategy])}" for strategy in answers)
    cells = (case.family, f"`{file}`", f"`{case.command}`", said, true)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _facts(facts: Facts) -> str:
    return "; ".join(
        f"no {word}" if value is None else TOLD.get(word, f"{word} says: {{}}").format(value)
        for word, value in facts.items()
    )


HEAD = """# Cases

Steps of users that are easily read wrong: what gcprof says of each, and what is true. The files are those of
`tests/user_models`. The last column is worked out without gcprof: in `tests/case_truths.py` by two steps in plain
PyTorch from seeds 0 and 1, run twice as they are and once with `torch.utils.checkpoint` around the same blocks by hand;
in `tests/case_bytes.py` by arithmetic or PyTorch's own allocator. `tests/test_cases.py` holds the one to the other
whenever the tests run. `just cases` writes this page, each row from the trials that it runs, with all notes but those
of PyTorch's own warnings. Modules that are made by chance are held to plain PyTorch by `just fuzz-modules`.

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
