"""What it costs to see whose step it is: `just bench-rules`.

Runs the trials of a run, `none` and `all` in three rounds of 20 timed steps, each trial in a fresh process, with the
rules that look at more than the first step's gradients and without them, in pairs of alternating order. A trial
includes its start, and a run its own. Left out are: the second step, the generators of Python, numpy and the model,
what it keeps in plain Python, warnings, the model's own checkpoints, parameters without a gradient, growth from step to
step, the graph that leads nowhere, and what hangs on ctx. What is compared is seconds of the processor, which other
work on the machine changes little. Fails where a run costs more than 5 % with them, by the median of the pairs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from statistics import median
from typing import Any
from unittest import mock

import msgspec

from profiler.core.case import Case, Choice, Trial, decode, encode
from profiler.core.schedule import in_rounds
from profiler.core.stats import interval
from profiler.engines.local import Local

ROUNDS, SAMPLES, PAIRS, TOLERANCE = 3, 20, 7, 0.05
MODELS = {"mlp": 64, "transformer:layers=4,width=64": 2}


def main(words: list[str]) -> int:
    """Print the ratio of each model's runs; 1 where one is above the tolerance."""
    num_pairs = int(words[0]) if words else PAIRS
    failed = False
    start_seconds = _start_seconds()
    print(f"a run without its trials: {start_seconds:.2f} s")
    with Local(stage_seconds=600.0) as engine:
        for model, batch_size in MODELS.items():
            pairs = [_pair(engine, model, batch_size, number) for number in range(num_pairs)]
            ratios = [(start_seconds + pair[True]) / (start_seconds + pair[False]) for pair in pairs]
            low, high = interval(ratios) or (min(ratios), max(ratios))
            print(
                f"{model:24} with / without: median {median(ratios):.3f} ({low:.3f}..{high:.3f}), "
                f"{'  '.join(f'{ratio:.3f}' for ratio in ratios)}",
                flush=True,
            )
            failed |= median(ratios) > 1 + TOLERANCE
    return int(failed)


def _start_seconds() -> float:
    """What a run takes besides its trials: its interpreter, torch in the server, the look at the devices."""
    words = [sys.executable, "-m", "profiler", "run", "mlp", "--dry-run"]
    subprocess.run(words, check=True, capture_output=True)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _pair(engine: Local, model: str, batch_size: int, number: int) -> dict[bool, float]:
    order = (True, False) if number % 2 else (False, True)
    return {with_rules: _run_seconds(engine, model, batch_size, with_rules=with_rules) for with_rules in order}


def _run_seconds(engine: Local, model: str, batch_size: int, *, with_rules: bool) -> float:
    """The seconds of the processor that all trials of a run take, from the start of their processes."""
    cases = [
        Case(
            model=Choice(model),
            strategy=Choice(strategy),
            optimizer=Choice("sgd"),
            batch_size=batch_size,
            device="cpu",
            samples=SAMPLES,
        )
        for strategy in ("none", "all")
    ]
    digests: dict[str, Any] = {}
    whole = 0.0
    for trial in in_rounds(cases, ROUNDS):
        asked = msgspec.structs.replace(trial, digests=digests.get("none") if trial.round == 1 else None)
        text = json.dumps([with_rules, encode(asked).decode()])
        answer = engine.ask("benchmarks.rules:measured", text, failing="a trial")
        whole += answer["seconds"]
        digests.setdefault(str(trial.case.strategy), answer["digests"])
    return whole


def measured(request: str, channel: int) -> None:
    """Measures a trial in a fresh process, with the rules or without; answers with its digests."""
    import torch

    from profiler.measuring.trial import measure

    torch.set_num_threads(1)  # threads that wait for each other take the more seconds the busier the machine is
    with_rules, text = json.loads(request)
    with nullcontext() if with_rules else without_rules():
        record = measure(decode(text, Trial))
    assert record.outcome == "ok", record.detail
    digests = record.equality.digests if record.equality else None
    os.write(channel, msgspec.json.encode({"digests": digests, "seconds": time.process_time()}) + b"\n")


def without_rules() -> ExitStack:
    """Measuring as it would be if only the first step's gradients were compared."""
    from profiler.measuring import passes
    from profiler.measuring.bench import Bench
    from profiler.measuring.meters import equality, step_results
    from profiler.measuring.meters.step_digests import StepDigests
    from profiler.measuring.meters.tensor_values import Digest
    from profiler.training import assemble, missing_gradients, plain_state, random_sources

    def one_step(step: Any, update: Any = None) -> Any:
        return step_results.collect(step)

    def first_step(steps: Any) -> None:
        steps.digests = {**steps._first, "second step": Digest().text()}
        del steps._workload

    stack = ExitStack()
    for owner, name, instead in (
        (equality, "collect_two", one_step),
        (StepDigests, "finish", first_step),
        (random_sources, "_sources", lambda workload: {}),
        (random_sources, "_globals", dict),
        (plain_state, "image", lambda module: {}),
        (missing_gradients, "without_gradient", lambda module: ()),
        (assemble, "WatchedLoss", lambda loss, calls: loss),
        (passes, "_look_at_graph", lambda bench, loss, workload: {}),
        (passes, "_tell_growth", lambda *words: None),
        (Bench, "tell_warnings", lambda bench: None),
        (Bench, "tell_checkpoints", lambda bench: None),
    ):
        stack.enter_context(mock.patch.object(owner, name, instead))
    return stack


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
