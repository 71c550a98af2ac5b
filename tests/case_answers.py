"""What gcprof says of the users' steps of docs/tables/cases.md, asked as a user would, in this process."""

import re
from functools import cache
from typing import Any, NamedTuple

from profiler.analysis.explanation import better_blocks, explain
from profiler.analysis.rows import verdict
from profiler.core.case import Case, Choice, Trial
from profiler.core.record import Record
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.predicting.prediction import follow_case, predict
from profiler.views.tables.explanation import REMEDIES
from tests import make
from tests.case_truths import Facts

WARNED = "GCP046"  # what PyTorch warned of, in the words of its version
NUMBERS = ("num_parameters", "saved_bytes")  # which the page shows of what gcprof says
PASSES = {  # the pass that tells of these; else equality alone
    "saved_bytes": "memory",
    "GCP048": "memory",
    "GCP051": "flops",
    "GCP054": "flops",
    "GCP055": "flops",
}
TOLD = {  # how a fact is told
    "gradients": "{}",
    "largest_difference": "the largest difference is {:.1e}",
    "num_without_gradient": "{} parameters train without a gradient",
    "num_parameters": "{:,} parameters",
    "saved_bytes": "{:,} bytes are saved",
    "buffers_difference": "buffers differ by {:.1e}",
    "outcome": "the outcome is {}",
    "detail": "the reason says: {}",
    "all_bytes": "the peak is {:,} bytes",
    "peak_bytes": "the peak is {:,} bytes",
    "remedy": "it is lowest with {}",
    "better_blocks": "it is lowest with `--blocks {}`",
    "better_bytes": "{:,} bytes",
}


class Answer(NamedTuple):
    """What is said of a strategy: in words for the page, and each fact that is asked for."""

    words: str
    told: Facts


def run(model: Choice, strategy: str, facts: Facts, **fields: Any) -> Answer:
    """What `gcprof run` says, with the passes that the facts speak of."""
    passes = tuple(dict.fromkeys(["equality", *(PASSES[word] for word in facts if word in PASSES)]))
    case = make.case(strategy, model=model, batch_size=None, warmup=0, samples=1, **fields)
    trial = Trial(case=case, passes=passes, digests=_digests(case.baseline) if strategy != "none" else None)
    return _of_record(attempt(trial, on_pass=lambda name: None, by=measure), facts)


@cache
def _digests(baseline: Case) -> dict[str, str] | None:
    equality = attempt(Trial(case=baseline, passes=("equality",)), on_pass=lambda name: None, by=measure).equality
    return equality.digests if equality else None


def predicted(model: Choice, strategy: str, facts: Facts, **fields: Any) -> Answer:
    """What `gcprof predict` says."""
    case = make.case(strategy, model=model, batch_size=None, device="fake:cpu", **fields)
    record = attempt(Trial(case=case), on_pass=lambda name: None, by=lambda trial, on_pass: predict(trial))
    return _of_record(record, facts)


def one_way(model: Choice, strategy: str, facts: Facts) -> Answer:
    """What `gcprof predict --routing worst` says."""
    return predicted(model, strategy, facts, routing="worst")


def explained(model: Choice, strategy: str, facts: Facts) -> Answer:
    """What `gcprof explain` says of the blocks and of better ones, which it works out from the trace of `none`."""
    case = make.case(model=model, batch_size=None, device="fake:cpu")
    choices = follow_case(Trial(case=case), with_choices=True).choices
    better = better_blocks(choices)
    told = {"all_bytes": choices.own.all_bytes, "better_blocks": better.pattern, "better_bytes": better.all_bytes}
    words = f"the peak of `{strategy}` is {told['all_bytes']:,} bytes, and {better.all_bytes:,} bytes"
    return Answer(f"{words} with `--blocks {better.pattern}`", told)


def remedied(model: Choice, strategy: str, facts: Facts) -> Answer:
    """What `gcprof explain` says of the peak, and what would lower it most."""
    case = make.case(strategy, model=model, batch_size=None, device="fake:cpu")
    followed = follow_case(Trial(case=case))
    explained = explain(followed.trace, blocks=followed.blocks)
    first, *_ = explained.remedies
    name, cost = REMEDIES[first.kind].removesuffix(")").split(" (")
    told = {"peak_bytes": explained.peak.nbytes, "remedy": name}
    return Answer(f"the peak is {told['peak_bytes']:,} bytes; {name} ({cost}) could lower it by {first.nbytes:,}", told)


def _of_record(record: Record, facts: Facts) -> Answer:
    told = {word: _told(record, word) for word in facts}
    return Answer(_words(record, told), told)


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
    numbers = [TOLD[word].format(told[word]) for word in NUMBERS if told.get(word) is not None]
    parts = [", ".join([f"**{record.outcome}**", *gradients]), *numbers, *([record.detail] if record.detail else [])]
    text = "; ".join([*parts, *(f"{note.code} {note.text}" for note in record.notes if note.code != WARNED)])
    if verdict(record) == "not verifiable":
        text = re.sub(r"differ by \S+, worst in \S+:", "differ:", text)
    return text
