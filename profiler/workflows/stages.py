"""A model on its device, here or not, and the stages that plans are made of: what `stages`, `plan` and `fit` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from msgspec import UNSET

from profiler import engines
from profiler.analysis import progress
from profiler.analysis.explanation import better_blocks
from profiler.core import device_choice, gpu_specs, plan_file
from profiler.core.case import OPERATORS, OWN, Calibration, Case, Choice, Trial, encode_indented, split_choices
from profiler.core.errors import UserError
from profiler.core.gpu_specs import CONTEXT_BYTES, MOST_BYTES, absent, parse, to_predict, to_rehearse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Environment, Evidence, Record, evidence
from profiler.core.trace_data import BlockChoices, Followed
from profiler.core.units import batch_text, bytes_text
from profiler.engines import NO_RESULT, STAGE_SECONDS, Engine, answer
from profiler.engines.local import why_no_rehearsal
from profiler.planning.chain import Chain
from profiler.planning.plan_code import Way
from profiler.runs import run_folder, store
from profiler.runs.store import Run
from profiler.views.tables.columns import device_word
from profiler.views.tables.explanation import better_text
from profiler.workflows import SILENT, STARTING, Screen, spec
from profiler.workflows.run import follow
from profiler.workflows.spec import Request, command_line, flags, optimizer_text


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step, the engine that runs it, and what returns the hidden bytes of operators on its device."""

    case: Case
    engine: Engine
    calibration: Callable[[], Calibration | None] = lambda: None
    most_host_bytes: int | None = None  # of pinned host memory, for what may wait there; None: any


class ModelOnDevice:
    """The model asked for, and an engine while the context is entered. Raises UserError for more than one case."""

    def __init__(self, words: Request, screen: Screen = SILENT, *, most_host_bytes: int | None = None) -> None:
        self._words, self._screen, self._most_host_bytes = words, screen, most_host_bytes
        self._calibration: Calibration | None = None
        self._is_calibrated = False
        self.remarks: tuple[str, ...] = ()
        case = self._checked(device_choice.any_device)  # before torch is imported, which takes seconds
        self._rehearsed = (Trial(case=case),) if case.is_rehearsed else ()

    def __enter__(self) -> ModelOnDevice:
        with ExitStack() as stack:  # ends the engine if the device is refused
            with self._screen.doing(STARTING):
                self.engine: Engine = stack.enter_context(engines.connect(plan=self._rehearsed))
                self.devices: dict[str, Environment] = self.engine.survey()
            self.engine.at_work = self._screen.at_work
            self.case = self._checked(lambda word: device_choice.choose_device(word, list(self.devices)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def title(self) -> str:
        """The model, its settings and the device, in one line."""
        case = self.case
        return f"{case.model}, {batch_text(case.batch_size)}, {optimizer_text(case)}, {case.precision}, {case.device}"

    @property
    def heading(self) -> str:
        """The title with the device as users read it."""
        return self.title.removesuffix(self.case.device) + device_word(self.case.device)

    @property
    def step(self) -> Step:
        """The model's step alone, for what a caller's step can have done too."""
        most = self._most_host_bytes
        return Step(case=self.case, engine=self.engine, calibration=self.calibration, most_host_bytes=most)

    @property
    def device_bytes(self) -> int | None:
        """The memory of the device, if it is known."""
        return device_choice.environment(self.case.device, self.devices).device_bytes

    @property
    def evidence(self) -> Evidence:
        """The evidence that a step on this device gives: measured, rehearsed or predicted."""
        return evidence(self.case, device_choice.environment(self.case.device, self.devices))

    @property
    def words(self) -> tuple[str, ...]:
        """The model and its flags as they were typed, for the next command."""
        return str(self._words.model), *flags(self._words, without=("model", "strategies"))

    def calibration(self) -> Calibration | None:
        """Return the hidden bytes of operators on the device, as `calibrate` measures them; measured once."""
        if not self._is_calibrated:
            self._calibration, self._is_calibrated = calibrate(self.engine, self.case), True
        return self._calibration

    def chain(self, budget: str | None = None) -> Chain:
        """Return the stages and their costs, measured or estimated; without times if no plan can fit the budget."""
        chain = stages(self.engine, self.case, self.calibration(), budget=budget)
        for note in chain.notes:
            self._screen.say(f"note: {note}")
        return msgspec.structs.replace(chain, made_for=self.title)

    def own_form(self, budget_bytes: int, *, measure: bool) -> Record | None:
        """Return a step with the model's own checkpoints, run or traced; None if it has none or does not fit."""
        own = msgspec.structs.replace(self.case, strategy=Choice(OWN))
        case = own if measure or own.is_rehearsed else own.foreseen
        trial = Trial(case=case, passes=("memory",), calibration=self.calibration() if case.is_predicted else None)
        (record,) = self.engine.run([trial])
        peak = record.readings.peak_bytes
        has_own = not any(note.code == "GCP001" for note in record.notes)  # else the model calls no checkpoint itself
        return record if has_own and record.outcome == "ok" and peak is not None and peak <= budget_bytes else None

    def run(
        self, folder: Path, trials: tuple[Trial, ...], *, plans: Mapping[Path, PlanFile], ready: Sequence[Record] = ()
    ) -> tuple[int, Run]:
        """Run the trials in a new run folder, with the plans that they read; return an exit code and the run.

        `ready` are records of trials that were run before.
        """
        digests = store.code_digests(trial.case for trial in trials)
        digests |= {str(path): store.digest(encode_indented(plan)) for path, plan in plans.items()}  # written below
        run = store.create(
            folder,
            plan=trials,
            command=command_line(),
            environment=device_choice.environment(self.case.device, self.devices),
            sources=digests,
        )
        if plans:
            (folder / plan_file.FOLDER).mkdir()
        for path, plan in plans.items():
            plan_file.write(plan, path)
        code, run = follow(self.engine, run, self._screen, ready=ready)
        return code or progress.exit_code(run.records), run

    def _checked(self, choose_device: Callable[[str], str]) -> Case:
        checked = spec.check(self._words, choose_device)
        self.remarks = checked.remarks
        cases = list(dict.fromkeys(trial.case for trial in checked.trials))
        if len(cases) > 1:
            raise UserError("only one model can be planned at once", hint="name one model, batch size and precision")
        return cases[0]


def way_of(engine: Engine, case: Case, plan: PlanFile | None) -> Way:
    """Return what code is written for of a case; `plan` is that of its strategy, if it is one. Raises UserError."""
    heads = tuple(lever for lever in case.levers or () if lever.name == "chunk-loss")
    asked = msgspec.structs.replace(case.foreseen, levers=heads or UNSET)
    asked = asked.uncheckpointed if plan else asked
    way = answer(engine, "way", asked, Way, failing=f"the levers of '{case.model}' {NO_RESULT}", of=str(case.model))
    label = str((msgspec.structs.replace(case, strategy=Choice("plan")) if plan else case).label)
    return msgspec.structs.replace(
        way, label=label, levers=case.levers or (), plan=plan or way.plan, batch_size=case.batch_size
    )


def limit_of(limit: int | float, whole: int | None, *, of: str, say: Callable[[str], None]) -> int:
    """Return the limit in bytes; a fraction is of the whole memory of a device. Raises UserError if that is unknown."""
    if isinstance(limit, int):
        if whole is not None and limit > whole:
            say(f"note: {bytes_text(limit)} are more than {of} has: {bytes_text(whole)}")
        return limit
    if whole is None:
        raise UserError(
            f"how much memory '{of}' has is not known", hint="name it: --memory 11GiB; or a GPU: --device t4"
        )
    return int(limit * whole)


def context_alone(context_bytes: int, limit_bytes: int) -> dict[str, str]:
    """Return why all levers are left out, if CUDA itself takes all of the limit."""
    if context_bytes < limit_bytes:
        return {}
    return {"all levers": f"CUDA itself takes {bytes_text(context_bytes)}: see --context"}


def context_of(model: ModelOnDevice, asked: int | None) -> tuple[int, str | None]:
    """Return what CUDA takes, and its source: as asked, else as measured with one sample, else as assumed."""
    if "cpu" in model.case.device:
        if asked is not None:
            raise UserError("--context has no effect on a CPU", hint="leave it out")
        return 0, None
    if asked is not None:
        return asked, "as asked"
    measured = measured_context(model.engine, model.case)
    return (CONTEXT_BYTES, "assumed") if measured is None else (measured, "measured")


def measured_context(engine: Engine, case: Case) -> int | None:
    """Measure the bytes that CUDA and other processes take besides the allocator, while one sample is trained.

    Returns None for a prediction, a rehearsal and on a CPU, and if the trial has no such readings.
    """
    if case.is_predicted or case.is_rehearsed or case.device == "cpu":
        return None
    alone = msgspec.structs.replace(case, batch_size=1, verify="off")
    (record,) = engine.run([Trial(case=alone, passes=("memory",))])
    if evidence(record.case, record.environment) != "measured":
        return None  # the context of a hollow device is set, not measured
    taken, reserved = record.readings.device_bytes, record.readings.reserved_bytes
    return None if taken is None or reserved is None else max(0, taken - reserved)


def better_blocks_text(engine: Engine, case: Case, *, below_bytes: int | None = None) -> str | None:
    """Return words for better blocks, whose lower bound is below so many bytes; None if there are none, or no trace."""
    choices = block_choices(engine, case)
    better = better_blocks(choices, lowers_floor=below_bytes is not None) if choices else None
    is_lower = better is not None and (below_bytes is None or better.floor_bytes < below_bytes)
    return better_text(choices, better) if choices and better and is_lower else None


def block_choices(engine: Engine, case: Case) -> BlockChoices | None:
    """Return floors and peaks of a case's blocks and of the model's other choices; None if they are not known."""
    case = case.baseline if case.is_rehearsed else case.baseline.foreseen
    with suppress(UserError):
        return followed(engine, Trial(case=case), with_choices=True).choices
    return None


def followed(engine: Engine, trial: Trial, *, with_choices: bool = False) -> Followed:
    """Return the step of the trial's case, traced or rehearsed as it says. Raises UserError if it cannot be followed.

    `with_choices` adds what other blocks come to.
    """
    failing = f"'{trial.case.model}' under '{trial.case.label}' {NO_RESULT}"
    function = "follow_with_choices" if with_choices else "follow"
    strategy = "" if trial.case == trial.case.baseline else str(trial.case.label)
    return answer(engine, function, trial, Followed, failing=failing, of=strategy)


def calibrate(engine: Engine, case: Case) -> Calibration | None:
    """Return what operators take besides their results on the case's device, measured in one step that fits it.

    Returns None for a device that is not there, or if no step fits.
    """
    if case.is_predicted or case.is_rehearsed:
        return None
    for strategy in ("none", "all"):
        trained = msgspec.structs.replace(case, strategy=Choice(strategy))
        for record in engine.run([Trial(case=trained, passes=(OPERATORS,))]):
            if record.outcome == "ok" and record.readings.hidden_bytes is not None:
                name = record.environment.device_name if record.environment else None
                return Calibration(hidden_bytes=record.readings.hidden_bytes, device_name=name)
    return None


def roomy(case: Case) -> Case:
    """Return a rehearsed case with memory for any step on its GPU; other cases as they are."""
    if not case.is_rehearsed:
        return case
    device = msgspec.structs.replace(parse(case.device), bytes=MOST_BYTES, context_bytes=None)
    return msgspec.structs.replace(case, device=str(device))


def stages(
    engine: Engine,
    case: Case,
    calibration: Calibration | None,
    *,
    passes: tuple[str, ...] = ("memory", "time"),
    budget: str | None = None,
) -> Chain:
    """Return the chain of the case's model; without the pass `time`, its bytes alone. Raises UserError if it has none.

    Nothing is timed either if the bytes show that no plan fits the budget. Seconds of a rehearsed case are estimated;
    its stages are traced on a GPU with room for the step without checkpointing.
    """
    case = roomy(case)
    trial = Trial(
        case=case, calibration=calibration, passes=passes, budget=UNSET if budget is None else budget,
        limit_seconds=STAGE_SECONDS.get(),
    )  # fmt: skip
    failing = f"the stages of '{case.model}' {NO_RESULT}"
    return answer(engine, "stage", trial, Chain, failing=failing, of=str(case.model))


CONVOLUTIONS = "aten.convolution"  # and aten.convolution_backward


def for_gpus(word: str, *, say: Callable[[str], None], is_estimated: bool = False) -> str:
    """Return the devices of a command that needs none, as cases have them: `t4,h100` -> `rehearse:t4,rehearse:h100`.

    They are estimated (`fake:t4`) where the word says so, for a CPU, if `is_estimated`, and where this machine cannot
    rehearse them; why is then said. `cuda` is an H100. Raises UserError for a GPU that is not known.
    """
    is_named = word == device_choice.SEVERAL or all(map(gpu_specs.is_known, word.split(",")))
    if is_estimated or not is_named:
        return word if parse(word).is_rehearsed else to_predict(word)
    asked = to_rehearse("h100" if word == device_choice.SEVERAL else word)
    if why := why_no_rehearsal(asked):
        say(f"note: estimated, not rehearsed: {why}")
        return to_predict(word)
    return asked


def planned(word: str | None, *, say: Callable[[str], None], is_estimated: bool = False) -> str | None:
    """Do as `for_gpus` for a GPU by its name; other devices are kept: they are measured, or say how they are known."""
    if word is None or not gpu_specs.is_known(word):
        return word
    return for_gpus(word, say=say, is_estimated=is_estimated)


def calibrated(devices: str, run: str, **sizes: str | None) -> str:
    """Return the devices to rehearse, `h100,t4`, with the sizes that a run measured on each, except those given.

    Raises UserError if it is no run, or nothing in it was measured on one of them.
    """
    records = store.load(run_folder(run)).records
    words = []
    for device in split_choices(to_rehearse(devices)):
        gpu = absent(str(device)).name
        measured = {name: str(nbytes) for name, nbytes in measured_sizes(records, gpu).items()}
        given = {name: size for name, size in sizes.items() if size is not None}
        words.append(to_rehearse(str(device), **{**measured, **Choice(device).options, **given}))
    return ",".join(words)


def measured_sizes(records: Sequence[Record], gpu: str) -> dict[str, int]:
    """Return the sizes `context` and `cudnn_workspace` of a rehearsed GPU, in bytes, as far as the records have them.

    `gpu` is its name in configs/devices. The context is the most that was taken of the device besides what PyTorch's
    allocator had reserved, while no other process used it. The workspace is the most that a convolution took besides
    its results. Raises UserError if no record was measured on such a GPU.
    """
    measured = [
        record
        for record in records
        if record.outcome == "ok"
        and evidence(record.case, device := record.environment) == "measured"
        and gpu_specs.word_of((device and device.device_name) or "") == gpu
    ]
    if not measured:
        raise UserError(f"nothing in it was measured on {gpu}", hint="--calibrate takes a measured run of that GPU")
    hidden = [(record.readings.hidden_bytes or {}).items() for record in measured]
    workspaces = [nbytes for calls in hidden for call, nbytes in calls if call.startswith(CONVOLUTIONS)]
    contexts = [  # of any phase, since some show too little between marks
        phase.device - phase.reserved
        for readings in (record.readings for record in measured)
        if not any(moment.others_bytes for moment in readings.conditions or ())
        for phase in (readings.phases or {}).values()
        if phase.device is not None and phase.reserved is not None
    ]
    found = {"context": max(contexts, default=0), "cudnn_workspace": max(workspaces, default=0)}
    return {name: nbytes for name, nbytes in found.items() if nbytes > 0}
