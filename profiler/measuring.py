"""Trial -> Record in this process: the only place where model, strategy, device and meters meet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from profiler.assemble import Assembled, Build, assemble
from profiler.case import OPERATORS, Case, Trial
from profiler.group import Group
from profiler.here import environment, of_rank, open_device
from profiler.meters import averaging, equality, flops, memory, operators
from profiler.meters import time as timing
from profiler.meters.equality import Step
from profiler.meters.leftovers import Leftovers
from profiler.record import Applied, Equality, Note, RankBytes, Readings, Record
from profiler.strategies.batchnorm import is_repairable
from profiler.switches import changed, switches
from profiler.units import bytes_text
from profiler.workload import Workload, tensors

ALONE = Group()
NEED_ARITHMETIC = ("equality", "time")  # the passes that a device which computes nothing cannot have


def measure(
    trial: Trial,
    *,
    on_stage: Callable[[str], None] = lambda stage: None,
    build: Build | None = None,
    group: Group = ALONE,
) -> Record:
    """Run the passes of a trial, each on a fresh model with the same seed.

    `on_stage` is told what begins: build, equality, memory, time. All ranks of a group measure together, and the
    record of each says the same of what is not its own. Raises Unsupported where model or strategy cannot be had, and
    whatever the model raises.
    """
    bench = _Bench(trial, on_stage, build, group)
    passes = bench.passes()
    before = switches()
    bench.begin("build")
    assembled = bench.build()
    built, notes = assembled.describe(), assembled.applied.notes
    del assembled
    verified, reason = bench.equality() if "equality" in passes else (None, None)
    readings: dict[str, Any] = {}
    if "flops" in passes:
        readings |= bench.flops()
    if "memory" in passes:
        readings |= bench.memory()
    if OPERATORS in passes:
        readings |= bench.operators()
    if "time" in passes:
        readings |= bench.time()
        bench.note_untold()
    bench.tell_changes(before)
    reason = bench.tell_leftovers() or reason
    return Record(
        case=trial.case,
        round=trial.round,
        outcome="invalid" if reason else "ok",
        detail=reason,
        built=built,
        readings=Readings(**readings),
        equality=verified,
        environment=environment(bench.device),
        notes=(*notes, *bench.all_notes()),
        stage_seconds=bench.end(),
        num_steps=bench.num_steps,
    )


class _Bench:
    """One trial at work: assembles fresh models, counts steps, keeps the time of each stage."""

    def __init__(
        self, trial: Trial, on_stage: Callable[[str], None], build: Build | None, group: Group = ALONE
    ) -> None:
        self.trial = msgspec.structs.replace(trial, case=of_rank(trial.case, group.rank))
        self._build = build
        self._group = group
        self.device = open_device(self.trial.case.device)
        self.num_steps = 0
        self._is_repairable = False  # whether --repair-batchnorm, which was not asked for, would mend the statistics
        self._tells = False  # whether the steps that were compared had a gradient to compare
        self.notes: list[Note] = []
        self._on_stage = on_stage
        self._stages: list[tuple[str, float]] = []
        self._leftovers = Leftovers(self.device)
        self._left = 0  # the most bytes that earlier passes have left for a later one
        self._misread = 0  # bytes that they have left in the peak

    def passes(self) -> tuple[str, ...]:
        """Those of the trial; on a hollow device without those that need arithmetic, which a note says."""
        if not self.device.is_hollow:
            return self.trial.passes
        text = (
            "rehearsed by PyTorch's own CUDA code on a device that computes nothing: bytes only, no gradients, no times"
        )
        self._note("GCP039", text)
        return tuple(name for name in self.trial.passes if name not in NEED_ARITHMETIC)

    def begin(self, stage: str) -> None:
        self.device.release()
        self._leftovers.start()
        self._on_stage(stage)
        self._stages.append((stage, time.monotonic()))

    def end(self) -> dict[str, float]:
        ends = [*[start for _, start in self._stages[1:]], time.monotonic()]
        return {stage: end - start for (stage, start), end in zip(self._stages, ends, strict=True)}

    def build(self, case: Case | None = None, *, calls: list[int] | None = None) -> Assembled:
        directory = self.trial.data_directory
        chosen = case or self.trial.case
        built = assemble(chosen, data_directory=directory, calls=calls, build=self._build, mesh=self._group.mesh)
        self._leftovers.built(built.workload)
        self._left = max(self._left, self._leftovers.nbytes)
        return built

    def equality(self) -> tuple[Equality | None, str | None]:
        """Against the digests that the baseline's trial gave, and why the trial is invalid, if it is.

        The baseline itself gives the noise floor.
        """
        case = self.trial.case
        if case.verify == "off":
            self._note("GCP006", "gradients were not compared: --verify off")
            return None, None
        self.begin("equality")
        found = self._baseline(case) if case == case.baseline else self._verify(case, self.trial.digests)
        if found is None:
            self._note("GCP003", "gradients were not compared: there is no result without checkpointing")
        elif not found.buffers_equal:
            self._note("GCP004", _buffers(found, self._is_repairable))
        if found and not self._tells:
            self._note("GCP014", "all gradients are zero or not finite, so that their equality says nothing")
        if found and not found.random_state_equal:
            self._note("GCP005", "the step draws other random numbers than without checkpointing")
        return found, equality.judge(found, strict=case.verify == "strict")

    def flops(self) -> dict[str, Any]:
        self.begin("flops")
        self.num_steps += 1
        calls: list[int] = []
        built = self.build(calls=calls)
        return {**flops.read(built.workload), "block_calls": tuple(calls)}

    def memory(self) -> dict[str, Any]:
        self.begin("memory")
        held = self._leftovers.held_bytes()
        own, gathered = self._read_memory()
        if self.device.held_bytes() is not None:  # else the meter counts but what happens within a step
            self.device.release()
            has_grown = self._leftovers.held_bytes() > held  # what does not is made once and used again, as a cache is
            self._misread = self._leftovers.nbytes if has_grown else self._leftovers.model_bytes
        if self._group.mesh is None:
            return own
        told = self._group.gather((own, _rank_bytes(own, gathered)))
        highest = max((readings for readings, _ in told), key=lambda readings: int(readings["peak_bytes"]))
        return {**highest, "ranks": tuple(rank for _, rank in told)}

    def _read_memory(self) -> tuple[dict[str, Any], int | None]:
        """The readings, and the most bytes of gathered parameters; the model is gone with the call."""
        built = self.build()
        optimizer, step = built.trainer()
        own = memory.read(
            built.workload, optimizer, self.device, lambda mark: self._check_loss(self._counted(step, mark))
        )
        return own, built.workload.gathered() if built.workload.gathered else None

    def operators(self) -> dict[str, Any]:
        self.begin(OPERATORS)
        _, step = self.build().trainer()
        return operators.read(self.device, lambda mark: self._counted(step, mark))

    def time(self) -> dict[str, Any]:
        self.begin("time")
        _, step = self.build().trainer()
        case = self.trial.case
        return timing.read(
            self.device,
            lambda mark: self._counted(step, mark),
            warmup=case.warmup,
            samples=case.samples,
            sampling=case.sampling,
            until=self._limit(),
            group=self._group,
        )

    def _limit(self) -> float | None:
        """When the stage at work must have ended."""
        limit = self.trial.limit_seconds
        return None if limit is None else self._stages[-1][1] + limit

    def tell_changes(self, before: dict[str, str]) -> None:
        """What the model's code did to the whole process: it ends with this trial, but a recipe elsewhere may not."""
        turned = changed(before, switches())
        if turned:
            self._note("GCP019", f"the model's code changes switches of all of torch: {', '.join(turned)}")

    def tell_leftovers(self) -> str | None:
        """What passes have left for later ones, and by whom; where the peak has it in it, why the trial is invalid."""
        if not self._left:
            return None
        where = "they are in no number" if self.device.held_bytes() is None else "as a cache does, they do not grow"
        keeper = self._keeper()
        if self._misread:
            text = f"{bytes_text(self._misread)} that earlier passes left are in the peak: {keeper}"
            self._note("GCP038", text)
            return text
        self._note("GCP038", f"{bytes_text(self._left)} that earlier passes made are still held, {where}: {keeper}")
        return None

    def _keeper(self) -> str:
        """Who keeps what is left: shown by one step more, of the model as it is."""
        if self._group.mesh is not None:
            return "by the model's code, or by what distributes or checkpoints it"
        self.device.release()
        alone = Leftovers(self.device)
        built = assemble(self.trial.case.baseline, data_directory=self.trial.data_directory, build=self._build)
        alone.built(built.workload)
        self._run(built)
        del built
        self.device.release()
        if alone.held_bytes() or alone.held_model_bytes():
            return "the model's own code keeps them, without checkpointing too, by a module-level name or by a cycle"
        return f"{self.trial.case.strategy} keeps them; the model alone leaves nothing behind"

    def _baseline(self, case: Case) -> Equality:
        """Against itself; in another precision than fp32 also against that."""
        found = equality.noise_floor(lambda: self._gradients(case), self._group)
        if self._group.mesh is not None:
            found = self._across(case, found)
        if case.precision == "fp32":
            return found
        exact = msgspec.structs.replace(case, precision="fp32")
        apart = equality.apart(lambda: self._gradients(exact), lambda: self._gradients(case), self._group)
        self._note("GCP013", f"in {case.precision} the gradients differ by {apart:.1e} from those in fp32")
        return msgspec.structs.replace(found, precision_difference=apart)

    def _across(self, case: Case, found: Equality) -> Equality:
        """Also against one process that has all ranks' batches, one after the other."""
        batch = equality.digest(tensors(self.build().workload.batch))
        if self._group.size > 1 and len(set(self._group.gather(batch))) == 1:
            self._note(
                "GCP035", "all ranks have the same batch: whether gradients are averaged over them cannot be seen"
            )
        return averaging.verify(
            found,
            lambda: self._gradients(case),
            lambda rank: lambda: self._alone(case, rank),
            lambda rank: lambda: self._alone(case, rank, nudge=True),
            self._group,
        )

    def _alone(self, case: Case, rank: int, *, nudge: bool = False) -> tuple[Workload, torch.Tensor]:
        """The step of one process with the batch of a rank."""
        built = assemble(case, data_directory=self.trial.data_directory, build=self._build, rank=rank)
        if nudge:
            equality.nudge(built.workload)
        return self._run(built)

    def _verify(self, case: Case, digests: dict[str, str] | None) -> Equality | None:
        if digests is None:
            return None
        mine = self.build()
        applied = mine.applied
        self._is_repairable = not case.repair_batchnorm and is_repairable(mine.workload, applied)
        found = self._against(case.baseline, lambda: self._run(mine), digests, applied)
        if applied.reference is None or equality.judge(found, strict=False) is None:
            return found
        if found.random_state_equal and not equality.is_rounding(found):
            return found
        why = f"rounds otherwise, by {found.largest_difference or 0.0:.1e}," if found.random_state_equal else ""
        text = f"compared with {applied.reference}: compiled code {why or 'draws other random numbers'} than `none`"
        self._note("GCP011", text)
        reference = msgspec.structs.replace(case, strategy=applied.reference)
        found = self._against(reference, lambda: self._gradients(case), {}, applied)
        return msgspec.structs.replace(found, against=str(applied.reference))

    def _against(self, baseline: Case, step: Step, digests: dict[str, str], applied: Applied) -> Equality:
        nudged = (lambda: self._gradients(baseline, nudge=True)) if applied.changes_kernels else None
        return equality.verify(step, lambda: self._gradients(baseline), digests, nudged=nudged, group=self._group)

    def _gradients(self, case: Case, *, nudge: bool = False) -> tuple[Workload, torch.Tensor]:
        built = self.build(case)
        if nudge:
            equality.nudge(built.workload)
        return self._run(built)

    def _run(self, built: Assembled) -> tuple[Workload, torch.Tensor]:
        self.num_steps += 1
        loss = built.gradients()
        if built.case.precision == self.trial.case.precision:
            self._tells = self._tells or equality.tells(built.workload)
        return built.workload, loss

    def _counted(
        self, step: Callable[[Callable[[str], None]], torch.Tensor], mark: Callable[[str], None]
    ) -> torch.Tensor:
        self.num_steps += 1
        return step(mark)

    def note_untold(self) -> None:
        """What the device does not say of itself is missing with its reason."""
        if reason := self.device.untold():
            self._note("GCP031", f"clock, heat, power and other processes of the device are not known: {reason}")

    def _check_loss(self, loss: torch.Tensor) -> None:
        if not self.device.is_hollow and not bool(torch.isfinite(loss)):
            self._note("GCP007", f"the loss is {float(loss)}: the gradients mean nothing, memory and time still do")

    def all_notes(self) -> list[Note]:
        """Also what only other ranks have to say."""
        for note in (note for notes in self._group.gather(self.notes) for note in notes):
            self._note(note.code, note.text)
        return self.notes

    def _note(self, code: str, text: str) -> None:
        if code not in {note.code for note in self.notes}:
            self.notes.append(Note(code=code, text=text))


def _rank_bytes(own: dict[str, Any], gathered: int | None) -> RankBytes:
    names = ("static_bytes", "saved_bytes", "peak_bytes")
    return RankBytes(**{name: own[name] for name in names}, gathered_bytes=gathered)


def _buffers(found: Equality, is_repairable: bool) -> str:
    apart = f"differ by {found.buffers_difference:.1e}" if found.buffers_difference else "differ"
    if found.buffers_difference is not None and found.buffers_difference <= equality.AGREE:
        return f"buffers agree but for rounding ({found.buffers_difference:.1e})"
    if is_repairable:
        return f"buffers {apart}: BatchNorm updates its statistics when it is recomputed; --repair-batchnorm mends it"
    return f"buffers {apart}: what a recompute writes into them it writes again"
