"""Case -> a model on its device, in its precision, with its strategy, ready for its first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Built, Note
from profiler.training import blocks, distributed, models, optimizers, precision, strategies
from profiler.training.strategies.batchnorm import repair_batchnorm
from profiler.training.workload import Mark, Workload, num_parameters, train_step


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """A fresh model, ready for its first step."""

    case: Case
    workload: Workload
    applied: Applied
    rank: int = 0  # of those that train it together

    def describe(self) -> Built:
        """Returns what was built."""
        workload = self.workload
        return Built(
            num_parameters=num_parameters(workload.module),
            num_blocks=len(workload.blocks),
            data=workload.data,
            split=self.applied.split,
        )

    def gradients(self) -> torch.Tensor:
        """Runs one step up to the gradients, scaled as in training and unscaled again; returns its loss."""
        scaler = precision.scaler(self.case.precision, self.case.device)
        return precision.unscaled(self.workload.module, scaler, self._from_the_seed)

    def _from_the_seed(self, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
        torch.manual_seed(self.case.seed + self.rank)
        return self._step(None, scaler, lambda phase: None)

    def trainer(self) -> tuple[torch.optim.Optimizer, Callable[[Mark], torch.Tensor]]:
        """Returns an optimizer, and the step with it, which marks its phases and returns its loss."""
        optimizer = _optimizer(self.case, self.workload)
        scaler = precision.scaler(self.case.precision, self.case.torch_device)
        return optimizer, lambda mark: self._step(optimizer, scaler, mark)

    def _step(
        self,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        mark: Mark,
    ) -> torch.Tensor:
        return train_step(
            self.workload,
            optimizer,
            mark=mark,
            accumulate=self.case.accumulate,
            keep_gradients=self.case.keep_gradients,
            scaler=scaler,
        )


Build = Callable[[], Workload]


def assemble(
    case: Case,
    *,
    data_directory: str | None = None,
    calls: list[int] | None = None,
    build: Build | None = None,
    mesh: DeviceMesh | None = None,
    rank: int | None = None,
) -> Assembled:
    """Build the case's model with its seed, and apply its strategy; the random state is as after seeding.

    `build` stands in for the catalogue's model. `calls` is filled with one number for each block: how often its forward
    will have run. With a `mesh`, its ranks train the model together as the case says, each with the batch and the
    random numbers of the seed + its rank; `rank` alone takes those, and trains by itself. Raises Unsupported where
    model, blocks or strategy cannot be had, and what the model's code raises.
    """
    own = rank if rank is not None else mesh.get_local_rank() if mesh else 0
    workload = _build(case, build or _from_catalogue(case, data_directory), own)
    if calls is not None:
        _count_calls(workload, calls)
    apply, options = catalogue.load(case.strategy, strategies.TABLE)
    applied: Applied = apply(workload, **options)
    if case.repair_batchnorm and case != case.baseline:
        applied = _repaired(workload, applied)
    if workload.optimizer is not None:
        note = Note(code="GCP009", text="the model brings its own optimizer, which stands in for the case's")
        applied = msgspec.structs.replace(applied, notes=(*applied.notes, note))
    if mesh:
        distribute, options = catalogue.load(case.parallel or Choice("ddp"), distributed.TABLE)
        workload = distribute(workload, mesh, **options)
        if _is_unmade(workload):
            workload.module.to_empty(device=case.torch_device)
    if calls is not None:
        calls[:] = [0] * len(calls)  # a strategy may have run the model to look at it
    torch.manual_seed(case.seed + own)
    return Assembled(case=case, workload=workload, applied=applied, rank=own)


def _build(case: Case, build: Build, rank: int) -> Workload:
    other = _seeded(case, build, case.seed + rank).batch if rank else None  # its model is gone before the next is made
    try:
        workload = _seeded(case, build, case.seed)
    except torch.OutOfMemoryError:
        if not case.is_rehearsed or not case.parallel or case.parallel.name != "fsdp2":
            raise
        workload = None
    if workload is None:  # whole, it does not fit: it is sharded before its storages are made, as in large trainings
        workload = _unmade(case, build)
    if rank:
        workload = msgspec.structs.replace(workload, batch=other)
    batch = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(case.torch_device), workload.batch)
    module = workload.module if _is_unmade(workload) else workload.module.to(case.torch_device)
    workload = msgspec.structs.replace(workload, module=module.train(), batch=batch)
    workload = precision.in_precision(workload, case.precision)
    if case.blocks or not workload.blocks:
        workload = msgspec.structs.replace(workload, blocks=blocks.find_blocks(workload.module, case.blocks))
    return workload


def _seeded(case: Case, build: Build, seed: int) -> Workload:
    torch.manual_seed(seed)
    with torch.device(case.torch_device):
        return build()


def _unmade(case: Case, build: Build) -> Workload:
    """Returns the model without storages, and its batch as zeros, of which views stay views."""
    with torch.device("meta"):
        workload = build()
    storages: dict[int, torch.UntypedStorage] = {}

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        unmade = tensor.untyped_storage()
        if unmade._cdata not in storages:
            storages[unmade._cdata] = torch.zeros(
                unmade.nbytes(), dtype=torch.uint8, device=case.torch_device
            ).untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype, device=case.torch_device)
        return made.set_(storages[unmade._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())

    batch = pytree.tree_map_only(torch.Tensor, zeros, workload.batch)
    return msgspec.structs.replace(workload, batch=batch)


def _is_unmade(workload: Workload) -> bool:
    return any(parameter.is_meta for parameter in workload.module.parameters())


def _from_catalogue(case: Case, data_directory: str | None) -> Build:
    build, options = catalogue.load(case.model, models.TABLE)
    given: dict[str, Any] = {"batch_size": case.batch_size, "data_directory": data_directory}
    options |= {key: value for key, value in given.items() if value is not None}
    return lambda: build(**options)


def _count_calls(workload: Workload, calls: list[int]) -> None:
    """Count the calls of blocks, beneath whatever a strategy puts around them."""
    calls[:] = [0] * len(workload.blocks)
    for index, name in enumerate(workload.blocks):
        block = workload.module.get_submodule(name)
        block.forward = _counting(block.forward, calls, index)


def _counting(forward: Callable[..., Any], calls: list[int], index: int) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[index] += 1
        return forward(*arguments, **keywords)

    return counted


def _optimizer(case: Case, workload: Workload) -> torch.optim.Optimizer:
    if isinstance(workload.optimizer, torch.optim.Optimizer):
        return workload.optimizer
    if workload.optimizer is not None:
        return workload.optimizer(workload.module.parameters())
    build, options = catalogue.load(case.optimizer, optimizers.TABLE)
    optimizer: torch.optim.Optimizer = build(workload.module.parameters(), **options)
    return optimizer


def _repaired(workload: Workload, applied: Applied) -> Applied:
    count = repair_batchnorm(workload, applied)
    if applied.recomputes and not count:
        raise Unsupported("--repair-batchnorm: no BatchNorm with running statistics is in a checkpointed block")
    text = f"the momentum of {count} BatchNorm layers was set to 1 - sqrt(1 - m) or its like"
    note = Note(code="GCP010", text=text if count else "--repair-batchnorm did nothing: no block is known to run again")
    return msgspec.structs.replace(applied, notes=(*applied.notes, note))
