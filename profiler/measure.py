"""Trial -> Record in this process: the only place where model, strategy, device and meters meet."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import torch
from torch.utils import _pytree as pytree

from profiler import __version__, catalogue, devices, models, optimizers, strategies
from profiler.case import Case, Choice, Trial
from profiler.devices import Device
from profiler.meters import equality, memory
from profiler.meters import time as timing
from profiler.record import Applied, Built, Environment, Equality, Note, Readings, Record
from profiler.workload import Workload, train_step


def measure(trial: Trial, *, on_stage: Callable[[str], None] = lambda stage: None) -> Record:
    """Run the passes of a trial, each on a fresh model with the same seed.

    `on_stage` is told what begins: build, equality, memory, time. Raises Unsupported where model or strategy cannot
    be had, and whatever the model raises.
    """
    bench = _Bench(trial, on_stage)
    bench.begin("build")
    workload, applied = bench.build(trial.case.strategy)
    built = _describe(workload, applied)
    del workload
    verified, reason = bench.equality() if "equality" in trial.passes else (None, None)
    readings: dict[str, Any] = {}
    if "memory" in trial.passes:
        readings |= bench.memory()
    if "time" in trial.passes:
        readings |= bench.time()
    return Record(
        case=trial.case,
        round=trial.round,
        outcome="invalid" if reason else "ok",
        detail=reason,
        built=built,
        readings=Readings(**readings),
        equality=verified,
        environment=environment(bench.device),
        notes=(*applied.notes, *bench.notes),
        stage_seconds=bench.end(),
        num_steps=bench.num_steps,
    )


def environment(device: Device) -> Environment:
    """Versions and the device, as this process sees them."""
    facts = device.facts()
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=facts.driver,
        device_name=facts.name,
        device_bytes=facts.total_bytes,
        device_uuid=facts.uuid,
        num_threads=torch.get_num_threads(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def open_device(name: str) -> Device:
    """The device of that name: `cpu`, `cuda:0`."""
    connect, _ = catalogue.load(Choice(name.partition(":")[0]), devices.TABLE)
    device: Device = connect(name)
    return device


class _Bench:
    """One trial at work: builds fresh workloads, counts steps, keeps the time of each stage."""

    def __init__(self, trial: Trial, on_stage: Callable[[str], None]) -> None:
        self.trial = trial
        self.device = open_device(trial.case.device)
        self.num_steps = 0
        self.notes: list[Note] = []
        self._on_stage = on_stage
        self._stages: list[tuple[str, float]] = []

    def begin(self, stage: str) -> None:
        gc.collect()  # the last pass's model is part of reference cycles
        self.device.release()
        self._on_stage(stage)
        self._stages.append((stage, time.monotonic()))

    def end(self) -> dict[str, float]:
        ends = [*[start for _, start in self._stages[1:]], time.monotonic()]
        return {stage: end - start for (stage, start), end in zip(self._stages, ends, strict=True)}

    def build(self, strategy: Choice) -> tuple[Workload, Applied]:
        """A fresh model on the device, the strategy applied, the random state as after seeding."""
        case = self.trial.case
        build_model, options = catalogue.load(case.model, models.TABLE)
        if self.trial.data_directory is not None:
            options["data_directory"] = self.trial.data_directory
        torch.manual_seed(case.seed)
        with torch.device(case.device):
            workload: Workload = build_model(batch_size=case.batch_size, **options)
        batch = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(case.device), workload.batch)
        workload = msgspec.structs.replace(workload, module=workload.module.to(case.device).train(), batch=batch)
        apply_strategy, options = catalogue.load(strategy, strategies.TABLE)
        applied: Applied = apply_strategy(workload, **options)
        torch.manual_seed(case.seed)
        return workload, applied

    def equality(self) -> tuple[Equality | None, str | None]:
        """Against the digests that the baseline's trial gave, and why the trial is invalid, if it is.

        The baseline itself gives the noise floor.
        """
        case = self.trial.case
        if case.verify == "off":
            self._note("GCP006", "gradients were not compared: --verify off")
            return None, None
        self.begin("equality")
        found = self._verify(case, self.trial.digests)
        if found is None:
            self._note("GCP003", "gradients were not compared: there is no result without checkpointing")
        elif not found.buffers_equal:
            self._note("GCP004", "buffers differ: BatchNorm updates its running statistics again when it is recomputed")
        if found and not found.random_state_equal:
            self._note("GCP005", "the step draws other random numbers than without checkpointing")
        return found, equality.judge(found, strict=case.verify == "strict")

    def memory(self) -> dict[str, Any]:
        self.begin("memory")
        workload, optimizer, step = self._trainer()
        return memory.read(workload, optimizer, self.device, lambda mark: self._check_loss(step(mark)))

    def time(self) -> dict[str, Any]:
        self.begin("time")
        _, _, step = self._trainer()
        return timing.read(self.device, step, warmup=self.trial.case.warmup, samples=self.trial.case.samples)

    def _verify(self, case: Case, digests: dict[str, str] | None) -> Equality | None:
        if case.strategy == case.baseline.strategy:
            return equality.noise_floor(lambda: self._gradients(case.strategy))
        if digests is None:
            return None
        return equality.verify(
            lambda: self._gradients(case.strategy), lambda: self._gradients(case.baseline.strategy), digests
        )

    def _gradients(self, strategy: Choice) -> tuple[Workload, torch.Tensor]:
        workload, _ = self.build(strategy)
        return workload, self._step(workload, None, lambda phase: None)

    def _check_loss(self, loss: torch.Tensor) -> None:
        if not bool(torch.isfinite(loss)):
            self._note("GCP007", f"the loss is {float(loss)}: the gradients mean nothing, memory and time still do")

    def _note(self, code: str, text: str) -> None:
        if code not in {note.code for note in self.notes}:
            self.notes.append(Note(code=code, text=text))

    def _trainer(self) -> tuple[Workload, torch.optim.Optimizer, Callable[[Callable[[str], None]], torch.Tensor]]:
        workload, _ = self.build(self.trial.case.strategy)
        build_optimizer, options = catalogue.load(self.trial.case.optimizer, optimizers.TABLE)
        optimizer: torch.optim.Optimizer = build_optimizer(workload.module.parameters(), **options)
        return workload, optimizer, lambda mark: self._step(workload, optimizer, mark)

    def _step(
        self, workload: Workload, optimizer: torch.optim.Optimizer | None, mark: Callable[[str], None]
    ) -> torch.Tensor:
        case: Case = self.trial.case
        self.num_steps += 1
        return train_step(
            workload, optimizer, mark=mark, accumulate=case.accumulate, keep_gradients=case.keep_gradients
        )


def _describe(workload: Workload, applied: Applied) -> Built:
    return Built(
        num_parameters=sum(parameter.numel() for parameter in workload.module.parameters()),
        num_blocks=len(workload.blocks),
        data=workload.data,
        split=applied.split,
    )
