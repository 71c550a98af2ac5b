"""Follows a caller's step, rehearsed or estimated: why its peak is what it is, and what is live over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.explanation import Explanation
from profiler.core import optional_deps
from profiler.core.case import Case, split_choices
from profiler.core.plan_file import PlanFile
from profiler.core.trace_data import Followed, Trace
from profiler.views.export import markdown as languages
from profiler.views.tables import explanation
from profiler.views.tables.columns import OWN_OPTIMIZER
from profiler.views.tables.grid import Table, text
from profiler.workflows.explain import assumed, explanation_of, heading
from profiler.workflows.in_process.answering import Source, answer, named
from profiler.workflows.in_process.arguments import Model, Optimizer, refuse_other_strategies
from profiler.workflows.in_process.trials import under


def explain(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> StepExplanation:
    """Explain the predicted peak of a training step: where it is, what holds it, how low it could be, and why.

    `model` is a module with its `batch`, a function as for `predict`, or a word (`mlp`, `train.py:make`). The module is
    called with the batch as `apply` calls it; with a `loss`, a batch of two is inputs and targets. `optimizer` is the
    module's own, a function of parameters, or a name (`adamw`); without it SGD is assumed. All stay as they are, and
    the step takes no memory. Bytes are rehearsed or estimated as for `predict`, and so are the other keywords. A
    notebook shows the result as tables, `print` as text; `peak_bytes` and `explanation` hold the numbers.

    Raises UserError for what cannot be asked for, Unsupported where the step cannot be traced, and whatever the model
    raises.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(4096, 256), torch.zeros(4096, 256)
        gcprof.explain(model, batch, loss=nn.functional.mse_loss, optimizer="adamw", device="h100")
    """
    steps, why = _steps(
        ["none", *([strategy] if strategy != "none" else [])], model, batch, loss, optimizer, device=device,
        precision=precision, blocks=blocks, seed=seed, with_choices=True,
    )  # fmt: skip
    (_, baseline), (step, chosen) = steps[0], steps[-1]
    explained = explanation_of(step, chosen, baseline)
    is_given = not isinstance(optimizer, str | None)  # then it is no news that the model has its own
    title = heading(step, chosen, with_strategy=True, is_assumed=optimizer is None)
    remarks = [remark for remark in chosen.remarks if not (is_given and OWN_OPTIMIZER in remark)]
    return StepExplanation(
        title=title.replace(OWN_OPTIMIZER, type(optimizer).__name__) if is_given else title,
        explanation=explained,
        notes=(*(assumed(chosen) if optimizer is None else ()), *remarks, *([why] if why else [])),
    )


def timeline(
    model: Model,
    batch: Any = None,
    strategies: str | Iterable[str | PlanFile | Path] = "none,all",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Timeline:
    """Predict what is live over a training step, under each of the strategies.

    `strategies` is a list as on the command line (`none,segments:k=4`), or one of words and plans. All else is as for
    `explain`. A notebook shows the result as a table and a picture, a panel for each strategy; `save("fig.png")` writes
    the picture, `peak_bytes` holds the peaks and `traces` the steps. Raises as `explain` does.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(4096, 256), torch.zeros(4096, 256)
        gcprof.timeline(model, batch, "none,segments:k=4", loss=nn.functional.mse_loss).peak_bytes
    """
    chosen = split_choices(strategies) if isinstance(strategies, str) else strategies
    steps, _ = _steps(
        list(chosen), model, batch, loss, optimizer, device=device, precision=precision, blocks=blocks, seed=seed
    )
    traces = {str(case.label): step.trace for case, step in steps}
    return Timeline(title=heading(*steps[0]), traces=traces)


def _steps(
    strategies: Sequence[str | PlanFile | Path], *model: Any, with_choices: bool = False, **words: Any
) -> tuple[list[tuple[Case, Followed]], str]:
    """Return the cases of these strategies, each with its step, and why they are estimated if they could be rehearsed.

    `model` and `words` are as of `answer`. With choices, the first step also has what other blocks come to.
    """

    refuse_other_strategies(*strategies)

    def ask(source: Source, case: Case) -> list[tuple[Case, Followed]]:
        steps = []
        for place, strategy in enumerate(strategies):
            with under(case, strategy) as (chosen, shown):
                step = source.followed(chosen, with_choices=with_choices and not place)
                steps.append((named(shown, model[0]), step))
        return steps

    return answer(ask, *model, **words)


class StepExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where the peak of a predicted step is, what holds it, how low it could be, and why it is no lower."""

    title: str
    explanation: Explanation
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of allocated bytes."""
        return self.explanation.peak.nbytes

    def __str__(self) -> str:
        return text(self._tables).plain

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return languages.html(self._tables)

    def _repr_markdown_(self) -> str:
        return languages.markdown(self._tables)

    @property
    def _tables(self) -> list[Table]:
        return explanation.in_python(explanation.tables(self.explanation, title=self.title, notes=self.notes))


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The live bytes of predicted steps, by the strategies' names."""

    title: str
    traces: dict[str, Trace]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The predicted peak of each strategy."""
        return {name: live_bytes.peak(trace).nbytes for name, trace in self.traces.items()}

    def save(self, path: str | Path) -> Path:
        """Draw the timeline as a png, svg or pdf, over any file there. Raises UserError."""
        view = optional_deps.load("profiler.views.plots.timeline", needs="matplotlib")
        drawn: Path = view.plot(self.traces, title=self.title, path=Path(path), force=True)
        return drawn

    def __repr__(self) -> str:
        return text([explanation.timelines(self.traces, title=self.title)]).plain

    def _repr_png_(self) -> bytes:
        return languages.png(self.save)

    def _repr_html_(self) -> str:
        return languages.html([explanation.timelines(self.traces, title=self.title)], picture=self._repr_png_())

    def _repr_markdown_(self) -> str:
        return languages.markdown([explanation.timelines(self.traces, title=self.title)])
