"""Plans at 70 % of the peak of 20 models in fp32 and amp-bf16, proved by running them: `just bench-plans`.

`gcprof plan MODEL --budget 70% --device h100`, and then the step under its plan on the hollow device, whose peak is to
be within the budget. On eight small models all plans of whole blocks are run in a bare loop (`benchmarks.bare_loop`):
the plan is to be at most 1 % slower, by the costs of its stages, than the fastest of those that fit.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks import Row, made, parser, record, resumed, table, write
from benchmarks.instrument import MODELS, MOST_MINUTES, bare, short
from profiler.core import plan_file
from profiler.core.errors import UserError
from profiler.core.gpu_specs import to_rehearse
from profiler.core.units import bytes_text
from profiler.engines.local import Local
from profiler.planning.chain import Plan, plan_file_of, render
from profiler.planning.simulator import simulate
from profiler.workflows.planner import Planned, PlanRequest, plan
from tests.planning_chains import every_items

BUDGET, DEVICE, PRECISIONS, SLOWER = "70%", "h100", ("fp32", "amp-bf16"), 0.01
NO_PLAN = "no plan fits"
HEAD = "model | precision | plan | peak, of the budget: | best of all blocks | plan slower by:"
SMALL = (  # by what stands in their words: all plans of their blocks are run
    *("kind=scan", "transformer:layers=4", "llama", "hf:bert", "hf:gpt2", "hf:vit", "kind=gated", "kind=upsampling"),
)
OTHERS = (
    *("mlp:", "cifar-resnet", "mnist-cnn", "torchvision:resnet18", "torchvision:resnet50", "densenet121"),
    *("mobilenet_v2", "convnext_tiny", "vit_b_16", "vit_tiny", "hf:t5", "kind=video"),
)


class Proved(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, its rehearsed peak, and the fastest plan of whole blocks that fits, where all were run."""

    row: Row
    plan: str = ""
    budget_bytes: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0  # of the plan's step, by the costs of its stages
    best: str = ""
    best_seconds: float = 0.0
    num_run: int = 0
    refused: str = ""  # why there is no plan

    @property
    def slower(self) -> float | None:
        """By how much the plan is slower than the best that was run, as a fraction."""
        return self.seconds / self.best_seconds - 1 if self.best_seconds and not self.refused else None

    @property
    def is_fine(self) -> bool:
        """Whether the plan keeps what is promised; where there is none, whether nothing that was run fits."""
        if self.refused:
            return not self.best and self.refused.startswith(NO_PLAN)
        return self.peak_bytes <= self.budget_bytes and (self.slower or 0) <= SLOWER

    @property
    def cells(self) -> tuple[str, ...]:
        best = f"`{self.best}`, of {self.num_run}" if self.best else f"none of {self.num_run}" if self.num_run else ""
        share = self.refused or f"{self.peak_bytes / self.budget_bytes:.2%}"
        slower = "" if self.slower is None else f"{self.slower:+.2%}"
        return f"`{short(self.row.model)}`", self.row.precision, f"`{self.plan}`", share, best, slower


def main() -> int:
    asked = parser(__doc__, "only models in whose words one of these stands", minutes=MOST_MINUTES).parse_args()
    models = [next(model for model in MODELS if word in model) for word in (*SMALL, *OTHERS)]
    chosen = [
        Row(model=model, batch_size=MODELS[model], device=DEVICE, precision=precision)
        for model in models
        if not asked.names or any(word in model for word in asked.names)
        for precision in PRECISIONS
    ]
    with Local(rehearses=True) as rehearsing, tempfile.TemporaryDirectory() as folder:
        proved = resumed(chosen, Proved, asked, partial(prove, rehearsing=rehearsing, path=Path(folder) / "plan.json"))
    held = [one for one in proved if not one.refused]
    brute = [one for one in held if one.slower is not None]
    text = (
        f"{made('plans')} Of {len({one.row.model for one in proved})} models "
        f"{sum(one.peak_bytes <= one.budget_bytes for one in held)} of "
        f"{len(held)} plans have a rehearsed peak within the budget; for {len(proved) - len(held)} no plan fits. "
        f"{sum((one.slower or 0) <= SLOWER for one in brute)} of {len(brute)} plans are at most 1 % slower than the "
        f"fastest of those that were run and fit.\n\n{table(HEAD, (one.cells for one in proved))}"
    )
    print(f"\n{text}")
    write(asked.output, "plans", text)
    return int(not all(one.is_fine for one in proved))


def prove(row: Row, *, rehearsing: Local, path: Path) -> Proved:
    """Plan for the row's model, run the step under the plan, and, of a small model, under all others of its blocks."""
    words = row.request(to_rehearse(row.device))
    try:
        planned = plan(PlanRequest(words=words, budget=BUDGET, measure=False, emit="python"))
    except UserError as error:
        return Proved(row=row, refused=error.message)
    assert planned.budget_bytes
    found = _brute_force(row, planned) if any(word in row.model for word in SMALL) else {}
    proved = Proved(row=row, budget_bytes=planned.budget_bytes, **found)
    if planned.fitted is None:
        return replace(proved, refused=f"{NO_PLAN}: the smallest needs {bytes_text(planned.frontier.peak_bytes[0])}")
    chosen = planned.fitted.point.plan
    plan_file.write(plan_file_of(planned.chain, chosen), path)
    under = record(rehearsing, replace(row, strategy=f"plan:file={path}").case(to_rehearse(row.device)))
    assert under.readings.peak_bytes, under.detail
    seconds = simulate(planned.chain, chosen).step_seconds
    return replace(proved, plan=render(chosen), peak_bytes=under.readings.peak_bytes, seconds=seconds)


def _brute_force(row: Row, planned: Planned) -> dict[str, Any]:
    """Return the fastest plan of whole blocks, one level deep, whose bare loop fits; and how many were run."""
    chain, fitting, number = planned.chain, list[tuple[float, str]](), 0
    names = [block.name for stage in chain.stages for block in stage.blocks]
    apart = {place for place, stage in enumerate(chain.stages) if stage.pinned or not stage.blocks}
    for items in every_items(0, len(chain.stages), 1):
        if any(apart & set(item) for item in items if isinstance(item, tuple)):
            continue
        candidate, number = Plan(items=items), number + 1
        segments = plan_file_of(chain, candidate).segments
        answer = bare(row, [[names.index(name) for name in segment.blocks] for segment in segments])
        assert "error" not in answer, answer
        if answer["peak_bytes"] <= (planned.budget_bytes or 0):
            fitting.append((simulate(chain, candidate).step_seconds, render(candidate)))
    seconds, best = min(fitting, default=(0.0, ""))
    return {"best": best, "best_seconds": seconds, "num_run": number}
