"""gcprof from Python: checkpoint a module by a strategy or a plan, measure its step, predict it, plan it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from profiler.core import catalogue, plan_file
from profiler.core.case import FAKE, PASSES, Case, Choice, Trial
from profiler.core.errors import Invalid, Unsupported, UserError
from profiler.core.plan_file import Recipe
from profiler.core.record import Applied, Record
from profiler.core.units import bytes_text, parse_budget
from profiler.measuring import measure as measure_trial
from profiler.planning import candidates, solver
from profiler.planning.chain import Chain
from profiler.planning.plan import recipe as recipe_of
from profiler.predicting.prediction import better_choice
from profiler.predicting.prediction import predict as predict_trial
from profiler.predicting.staging.stages import stages
from profiler.predicting.traced_case import known_rates
from profiler.request import device_choice, spec
from profiler.request.spec import Request
from profiler.training import blocks as finding
from profiler.training import marked_functions, optimizers, random_sources, strategies
from profiler.training.checkpointing import called_blocks
from profiler.training.models.user import as_workload, call
from profiler.training.strategies.plan import carry_out
from profiler.training.workload import Workload
from profiler.workflows import plan_fitting
from profiler.workflows.planner import DEPTHS, GATE, LONG, POINTS


@contextmanager
def _in_words_of_python() -> Iterator[None]:
    """Errors name keywords instead of options: `device` for `--device`. A step that trains nothing is a UserError."""
    try:
        yield
    except UserError as error:
        hint = None if error.hint is None else _python(error.hint)
        raise UserError(_python(error.message), hint=hint, exit_code=error.exit_code) from error
    except Unsupported as error:
        raise Unsupported(_python(str(error))) from error
    except Invalid as error:
        raise UserError(str(error), hint="build returns (module, batch), (module, batch, loss), ...") from error


def _python(text: str) -> str:
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda option: option[1].replace("-", "_"), text).replace(FAKE, "")


@_in_words_of_python()
def apply(
    module: nn.Module, strategy: str | Recipe | Path, *, example: Any = None, blocks: str | None = None
) -> Applied:
    """Change a module in place so that its backward recomputes what the strategy or the plan says.

    `strategy` is a word with options (`segments:k=4`, `all`), a plan of `profiler.plan`, or the Path of a plan's file.
    `blocks` is a pattern of names, `model.layers.*`; without it blocks are found by the module's structure, and a plan
    names its own. `example` is a batch as the module takes it (a dict as keywords, a tuple as arguments): strategies
    that run several blocks together look at one forward of it, unless the module is made of Sequentials alone. Names
    of parameters stay as they are. Returns the real split and how often each block is recomputed.

    Raises UserError for an unknown strategy or a file that is no plan, and Unsupported where it cannot be applied: no
    blocks, a module that is checkpointed already, a plan of another model.

    Example::

        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        profiler.apply(module, "segments:k=4").split  # '3x2+2': three segments of two modules, the last two kept
    """
    if not isinstance(strategy, str):
        return _carry_out(module, strategy, example, blocks)
    choice = catalogue.resolve(Choice(strategy), strategies.TABLE, what="strategy")
    function, options = catalogue.load(choice, strategies.TABLE)
    return _applied(_workload(module, finding.find_blocks(module, blocks), example), choice.name, function, options)


def _applied(workload: Workload, strategy: str, function: Callable[..., Applied], options: dict[str, Any]) -> Applied:
    """As the strategy; its blocks are calls where functions are marked, or blocks run several times."""
    if marked_functions.are_there() and workload.batch is not None:
        workload = called_blocks.marked(workload)
    chain, applied = called_blocks.applied(workload, strategy, lambda chain: function(chain, **options))
    called_blocks.follow_forwards(chain)
    return applied


def _carry_out(module: nn.Module, plan: Recipe | Path, example: Any, blocks: str | None) -> Applied:
    if blocks is not None:
        raise UserError(f"blocks='{blocks}' has no effect: a plan names its own blocks", hint="leave it out")
    recipe = plan if isinstance(plan, Recipe) else plan_file.read(plan)
    names = tuple(recipe.fingerprint)
    own = tuple(dict.fromkeys(name.partition(called_blocks.SIGN)[0] for name in names))
    return _applied(_workload(module, own, example), "plan", carry_out, {"plan": recipe})


def _workload(module: nn.Module, blocks: tuple[str, ...], example: Any) -> Workload:
    return Workload(module=module, blocks=blocks, batch=example, loss=_look)


def _look(module: nn.Module, example: Any) -> Any:
    if example is None:
        raise Unsupported("this is no plain Sequential: give a batch as example= to see how its blocks work together")
    return call(module, example)


@_in_words_of_python()
def measure(  # noqa: PLR0913  its keywords are a user's settings
    build: Callable[[], Any],
    strategy: str | Recipe | Path = "none",
    *,
    optimizer: str = "sgd",
    device: str = "cpu",
    precision: str = "fp32",
    blocks: str | None = None,
    warmup: int = 1,
    samples: int = 5,
    seed: int = 0,
) -> Record:
    """Measure one strategy in this process: memory, time, FLOPs, and equality to the step without checkpointing.

    `build` returns a fresh module and batch, optionally a loss and an optimizer, as a user's file does for `gcprof run`
    (see profiler.training.models.user); it is called once for each pass. `strategy` is as for `apply`. Bytes and
    seconds: `readings.peak_bytes`, `readings.step_seconds` with `samples` raw samples after `warmup` steps. One process
    for all is less exact than `gcprof run`, which takes a fresh one for every trial.

    Raises UserError for what cannot be asked for, Unsupported where the strategy cannot be applied, TypeError for a
    `build` that returns something else, and whatever it raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
            return module, (torch.randn(32, 64), torch.zeros(32, 64)), nn.functional.mse_loss


        record = profiler.measure(build, "segments:k=4")
        record.readings.saved_bytes, record.equality.gradients_equal
    """
    words = Request(
        device=device, precision=precision, blocks=blocks, rounds=1, warmup=warmup, samples=samples, seed=seed
    )
    checked = _case(words, build, optimizer, lambda word: device_choice.choose_device(word, _devices()))

    def made() -> Workload:
        return as_workload(build())

    def measured(case: Case) -> Record:
        trial = Trial(case=case, passes=PASSES)
        if case != case.baseline:
            equality = measure_trial(Trial(case=case.baseline, passes=("equality",)), build=made).equality
            trial = msgspec.structs.replace(trial, digests=equality.digests if equality else None)
        return measure_trial(trial, build=made)

    return _under(checked, strategy, measured)


@_in_words_of_python()
def predict(
    build: Callable[[], Any],
    strategy: str | Recipe | Path = "none",
    *,
    optimizer: str = "sgd",
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Record:
    """Predict what `measure` would find on a device that need not be there: one step is traced, nothing is computed.

    `build` is as for `measure`; the tensors that it makes take no memory, so that a model may be larger than this
    machine. It makes its module itself: one that was made before would be changed, and is refused. `strategy` is as
    for `apply`, `device` a GPU of `gcprof predict` (`h100`, `a100-80`, `rtx-4090`), `cuda` for one of no particular
    kind, or `cpu`. In the record, `readings.peak_bytes`, `saved_bytes`, `static_bytes` and `phases` are bytes;
    `reserved_bytes` is what PyTorch's caching allocator would take from a GPU; `step_seconds` holds one estimate in
    seconds for a GPU that is known by name, and is None for others. The notes say how sure it is. The random state of
    this process stays as it was.

    Raises UserError for what cannot be asked for, Unsupported where the strategy cannot be applied or the step cannot
    be traced (it depends on values of its data), TypeError for a `build` that returns something else, and whatever it
    raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8)))
            return module, (torch.randn(32, 4096), torch.zeros(32, 4096)), nn.functional.mse_loss


        before = profiler.predict(build, device="h100", precision="bf16").readings.peak_bytes
        after = profiler.predict(build, "segments:k=4", device="h100", precision="bf16").readings.peak_bytes
    """
    case = _foreseen(build, device, optimizer, precision, blocks, seed)
    with _own_random_state():
        return _under(case, strategy, lambda chosen: predict_trial(Trial(case=chosen), build=_fresh(build)))


@_in_words_of_python()
def plan(
    build: Callable[[], Any],
    budget: str | int,
    *,
    optimizer: str = "sgd",
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Recipe:
    """Returns the plan that recomputes least of those whose peak fits the budget.

    `build`, `device` and the other keywords are as for `predict`. `budget` is of the peak of allocated bytes in a step:
    "8GiB", a number of bytes, "60%" of the peak without checkpointing, or "max". What each block holds is traced, and
    the step under the plan is traced before the plan is returned: `predict(build, plan).readings.peak_bytes` is within
    the budget. For a GPU that is known by name the plan adds the least estimated seconds, and may keep the
    results of matrix products, convolutions or attention within a block; for `cuda` and `cpu` every block costs the
    same. Nothing is measured: `gcprof plan` does that too.

    The plan goes to `apply`, `measure` and `predict` as a strategy; `plan.save("plan.json")` writes it to a file, which
    `gcprof run --strategies plan:file=plan.json` and `apply(module, Path("plan.json"))` read. `plan.plan` says it in
    words: `1 [2-3] 4` keeps blocks 1 and 4, and recomputes 2 and 3 together.

    Raises UserError where no plan fits, naming the smallest peak there is, or for what cannot be asked for; Unsupported
    where the blocks do not run once each in order, or the step cannot be traced; TypeError for a `build` that returns
    something else, and whatever it raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
            return module, (torch.randn(4096, 256), torch.zeros(4096, 256)), nn.functional.mse_loss


        plan = profiler.plan(build, "60%", device="h100")
        module, batch, loss = build()
        profiler.apply(module, plan)
    """
    case, fresh = _foreseen(build, device, optimizer, precision, blocks, seed), _fresh(build)
    with _own_random_state():
        chain = _chain(case, fresh)
        budget_bytes = _budget_bytes(budget, whole_bytes=candidates.none(chain).cost.peak_bytes)
        name, floor = candidates.largest_stage(chain)
        points = POINTS if len(chain.stages) > LONG else None
        for levels in DEPTHS:
            frontier = solver.frontier(chain, levels=levels, points=points)
            if plan := _fitted(case, fresh, chain, frontier, budget_bytes):
                return plan
            if frontier.peak_bytes[0] <= floor:
                break  # deeper plans are no smaller
        better = better_choice(case, build=fresh)
    smallest = f"the smallest peak is about {bytes_text(frontier.peak_bytes[0])}"
    named = f"with blocks='{better.pattern}'" if better and better.pattern else "without blocks"
    others = f"{named} the floor is {bytes_text(better.floor_bytes)}; " if better else ""
    raise UserError(
        f"no plan fits {bytes_text(budget_bytes)}: {smallest}; '{name}' needs {bytes_text(floor)} by itself",
        hint=f"{others}a smaller batch lowers it; so do 16 bits, or an optimizer with less state",
        exit_code=GATE,
    )


def _foreseen(
    build: Callable[[], Any], device: str, optimizer: str, precision: str, blocks: str | None, seed: int
) -> Case:
    """The case of a prediction, without its strategy."""
    return _case(
        Request(device=device_choice.to_predict(device), precision=precision, blocks=blocks, seed=seed),
        build,
        optimizer,
        device_choice.any_device,
    )


def _case(words: Request, build: Callable[[], Any], optimizer: str, choose_device: Callable[[str], str]) -> Case:
    """The one case of what was asked for, checked as the command line does, without its strategy."""
    for name in ("precision", "device"):
        if "," in (value := getattr(words, name)):
            raise UserError(f"{name}: '{value}' is more than one", hint="ask for each by itself")
    request = msgspec.structs.replace(words, model="mlp", strategies="none")  # a model for the check alone
    (checked,) = spec.plan(request, choose_device).trials
    return msgspec.structs.replace(
        checked.case,
        model=Choice(getattr(build, "__qualname__", "model")),
        optimizer=catalogue.resolve(Choice(optimizer), optimizers.TABLE, what="optimizer"),
        batch_size=None,
    )


def _under(case: Case, strategy: str | Recipe | Path, record: Callable[[Case], Record]) -> Record:
    """The record of the case under a strategy; a plan from memory is read from a file meanwhile, and called `plan`."""
    if isinstance(strategy, Recipe):
        with TemporaryDirectory() as folder:
            strategy.save(Path(folder) / "plan.json")
            from_file = _under(case, Path(folder) / "plan.json", record)
        named = msgspec.structs.replace(from_file.case, strategy=Choice("plan"))
        return msgspec.structs.replace(from_file, case=named)
    word = Choice.of("plan", {"file": strategy}) if isinstance(strategy, Path) else Choice(strategy)
    choice = catalogue.resolve(word, strategies.TABLE, what="strategy")
    return record(msgspec.structs.replace(case, strategy=choice))


def _fresh(build: Callable[[], Any]) -> Callable[[], Workload]:
    """What `build` returns as a Workload. Raises UserError for a module with tensors of its own from before."""

    def made() -> Workload:
        workload = as_workload(build())
        if any(not isinstance(parameter, FakeTensor) for parameter in workload.module.parameters()):
            raise UserError(
                "build returned a module that was made before: tracing would change it",
                hint="make it inside build, which is called anew for every trace: def build(): module = MyModel(); ...",
            )
        return workload

    return made


@contextmanager
def _own_random_state() -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices), random_sources.kept():
        yield


def _chain(case: Case, fresh: Callable[[], Workload]) -> Chain:
    """The stages of the model; for a device whose speed is not known, each block's forward takes 1, its backward 2."""
    if known_rates(case.device):
        return stages(Trial(case=case), build=fresh)
    chain = stages(Trial(case=case, passes=("memory",)), build=fresh)
    counted = (
        msgspec.structs.replace(stage, forward_seconds=len(stage.blocks), backward_seconds=2 * len(stage.blocks))
        for stage in chain.stages
    )
    return msgspec.structs.replace(chain, stages=tuple(counted))


def _budget_bytes(budget: str | int, *, whole_bytes: int) -> int:
    if isinstance(budget, str):
        return parse_budget(budget, whole_bytes=whole_bytes)
    if budget < 1:
        raise UserError(f"--budget cannot be '{budget}'", hint="bytes, or a word as '60%'")
    return budget


def _fitted(
    case: Case, fresh: Callable[[], Workload], chain: Chain, frontier: solver.Frontier, budget_bytes: int
) -> Recipe | None:
    """The fastest plan of a frontier whose traced step fits; None where none does."""
    with TemporaryDirectory() as folder:
        fitted = plan_fitting.fit_plan(
            _InThisProcess(fresh),  # type: ignore[arg-type]  # an engine, as far as traced steps need one
            case,
            chain,
            frontier,
            budget_bytes=budget_bytes,
            path=Path(folder) / "plan.json",
            calibration=None,
            measure=False,
        )
    return recipe_of(chain, fitted.point.plan) if fitted else None


class _InThisProcess:
    """Predicts trials of one model here, where an engine would send them to a process of their own."""

    def __init__(self, build: Callable[[], Workload]) -> None:
        self._build = build

    def run(self, trials: Iterable[Trial]) -> Iterator[Record]:
        return (predict_trial(trial, build=self._build) for trial in trials)


def _devices() -> list[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(f"cuda:{index}" for index in range(count))]
