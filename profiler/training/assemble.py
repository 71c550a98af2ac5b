"""Case -> a model on its device, in its precision, with its strategy, ready for its first step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, BlockSummary, Built, ModelSummary, Note
from profiler.training import DISTRIBUTED, LEVERS, OPTIMIZERS, STRATEGIES, blocks, called_blocks, kept_state, models
from profiler.training.block_segments import apply_strategy, repaired, with_note
from profiler.training.known_values import (
    in_batch,
    in_factory,
    is_real,
    made_on_device,
    made_without_storages,
    pass_tests,
)
from profiler.training.memory_levers import grows, let_grow
from profiler.training.observed_forward import observe, observe_for_all
from profiler.training.own_checkpoints import OwnCalls, WatchedLoss, compiled_modules, forget, uncompiled_note
from profiler.training.workload import (
    Workload,
    compared,
    drop_gradients,
    in_precision,
    num_parameters,
    scaler_of,
    tensors,
    train_step,
    unscaled,
)

MODAL = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)  # layers that act differently in eval mode


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """A fresh model, ready for its first step."""

    case: Case
    workload: Workload
    applied: Applied
    rank: int = 0  # of this process, among those that train the model together
    own_calls: OwnCalls  # the model's own checkpoint calls in its last forward
    remarks: tuple[Note, ...] = ()  # on how the model was made, whatever the strategy
    switch: Callable[[bool], None] | None = None  # turns the strategy on, or off (as in `none`); None: it has no switch

    def describe(self) -> Built:
        """Return a summary of the model: its parameters, blocks, data and split."""
        workload = self.workload
        return Built(
            num_parameters=num_parameters(workload.module),
            num_blocks=len(workload.blocks),
            data=workload.data,
            split=self.applied.split,
        )

    def gradients(self, *, number: int = 1) -> torch.Tensor:
        """Run one step up to the gradients, with loss scaling undone again; return its loss.

        The random state is seeded as for the step of this number.
        """

        def step(scaler: torch.amp.GradScaler | None) -> torch.Tensor:
            self.seed(number)
            if number == 1 or scaler is not None:  # a scaled step may run again; else the next one adds to what stays
                drop_gradients(self.workload)
            return self._step(None, scaler)()

        return unscaled(compared(self.workload).values(), scaler_of(self.case.precision, self.case.device), step)

    def seed(self, number: int) -> None:
        """Seed the random state for the step of this number, counted from 1."""
        kept_state.seed(self.case.seed + self.rank + number - 1, self.workload)

    def trainer(self) -> tuple[torch.optim.Optimizer, Callable[..., torch.Tensor]]:
        """Return an optimizer and the function that runs a step with it, marks its phases and returns its loss.

        The function takes `mark` and `look`, which are those of `train_step`.
        """
        build, options = catalogue.load(self.case.optimizer, OPTIMIZERS)
        given = partial(build, **options) if self.workload.optimizer is None else self.workload.optimizer
        optimizer = given if isinstance(given, torch.optim.Optimizer) else given(self.workload.module.parameters())
        for change in self.workload.optimizer_changes:
            optimizer = change(optimizer)
        return optimizer, self._step(optimizer, scaler_of(self.case.precision, self.case.torch_device))

    def _step(
        self, optimizer: torch.optim.Optimizer | None, scaler: torch.amp.GradScaler | None
    ) -> Callable[..., torch.Tensor]:
        count, keeps = self.case.accumulate, self.case.keep_gradients
        return partial(train_step, self.workload, optimizer, scaler=scaler, accumulate=count, keep_gradients=keeps)


Build = Callable[[], Workload]


def assemble(
    case: Case,
    *,
    data_directory: str | None = None,
    calls: list[int] | None = None,
    build: Build | None = None,
    mesh: DeviceMesh | None = None,
    rank: int | None = None,
    in_calls: bool = False,
) -> Assembled:
    """Build the case's model with its seed, and apply its strategy; the random state is as after seeding.

    `build` replaces the catalogue's model. `calls` is filled with the number of times that each block's forward has
    run. With a `mesh`, its ranks train the model together as the case says; each seeds its batch and random numbers
    with the case's seed + its rank. `rank` without a mesh takes that rank's seed, and trains alone. With `in_calls`,
    each call of a block that runs several times is a block, as for strategies that cut a chain. Raises Unsupported if
    the model, blocks or strategy are not available, and whatever the model's code raises.
    """
    own = rank if rank is not None else mesh.get_local_rank() if mesh else 0
    prepared = None if build or mesh else _prepared.pop(case.baseline, None)
    if grows(case):
        prepared = None  # made of segments that do not grow
        let_grow(case)
    workload, remarks = prepared or _build(case, build or _from_catalogue(case, data_directory), own)
    if in_calls:
        workload = called_blocks.repeated(workload)
    own_calls = OwnCalls()
    watched = msgspec.structs.replace(workload, loss=WatchedLoss(workload.loss, own_calls))
    workload, applied, switch = _applied(case, watched, own_calls)
    own_calls.are_off = not applied.keeps_own
    if calls is not None:
        calls[:] = [0] * len(workload.blocks)
        count_calls(workload, calls)
    if case.repair_batchnorm and case != case.baseline:
        applied = repaired(workload, applied)
    elif case.is_rehearsed:  # elsewhere buffers are compared
        applied = with_note(workload, applied, mended_by="--repair-batchnorm")
    if workload.optimizer is not None:
        remarks.append(
            Note(code="GCP009", text="the model brings its own optimizer, which is used instead of --optimizer")
        )
    if text := eval_remark(workload.module):
        remarks.append(Note(code="GCP043", text=text))
    applied = msgspec.structs.replace(applied, notes=(*applied.notes, *remarks), switch=None)  # the switch holds it
    if mesh:
        distribute, options = catalogue.load(case.parallel or Choice("ddp"), DISTRIBUTED)
        workload = distribute(workload, mesh, **options)
        if _is_unmade(workload):
            workload.module.to_empty(device=case.torch_device)
    forget()  # a strategy may have run the model with checkpoints that its steps will not have
    if calls is not None:
        calls[:] = [0] * len(calls)
    kept_state.seed(case.seed + own, workload)
    return Assembled(
        case=case,
        workload=workload,
        applied=applied,
        rank=own,
        own_calls=own_calls,
        remarks=tuple(remarks),
        switch=switch,
    )


_prepared: dict[Case, tuple[Workload, list[Note]]] = {}


def prepare(trial: Trial) -> None:
    """Build the model of a trial's case now, for the next `assemble` of a case with that baseline, as forks need it.

    What its blocks do in a forward is observed, too, and remembered for the rest of the process. The memory that this
    took is freed without a backward, whose threads a fork does not have: the next step finds the model as it was built.
    """
    case = trial.case.baseline
    workload, remarks = _build(case, _from_catalogue(case, trial.data_directory), 0)
    observe_for_all(msgspec.structs.replace(workload, loss=WatchedLoss(workload.loss, OwnCalls())))
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    _prepared[case] = workload, remarks


def is_prepared(case: Case) -> bool:
    """Whether the next `assemble` of the case takes the model that `prepare` built."""
    return case.baseline in _prepared and not grows(case)


def assemble_beside(built: Assembled, case: Case) -> Assembled:
    """Apply the strategy of another case to the same model, switched off; the cases differ in nothing else.

    All other strategies on the model must be switched off. Raises Unsupported if this one cannot be applied or
    switched.
    """
    if built.workload.calls or case.repair_batchnorm or case.parallel:
        raise Unsupported(f"{case.label} needs a model of its own")
    workload, applied, switch = _applied(case, built.workload, built.own_calls)
    if workload is not built.workload or switch is None:
        raise Unsupported(f"{case.label} needs a model of its own")
    switch(False)
    applied = msgspec.structs.replace(applied, notes=(*applied.notes, *built.remarks), switch=None)
    return msgspec.structs.replace(built, case=case, applied=applied, switch=switch)


def _applied(
    case: Case, workload: Workload, own_calls: OwnCalls
) -> tuple[Workload, Applied, Callable[[bool], None] | None]:
    """Apply the case's strategy and levers; also return its switch, which has the model's own checkpoints with it."""
    compiled = compiled_modules(workload.module)
    apply, options = catalogue.load(case.strategy, STRATEGIES)
    if case.parallel:  # which may shard modules, so that blocks stay modules
        applied = apply(workload, **options)
    else:
        workload, applied = apply_strategy(workload, case.strategy.name, partial(apply, **options))
        remark = uncompiled_note([workload.blocks[index] for index in applied.recomputes], compiled)
        applied = msgspec.structs.replace(applied, notes=(*applied.notes, *([remark] if remark else [])))
    for lever in case.levers or ():  # what they did is added to what the strategy did
        change, lever_options = catalogue.load(lever, LEVERS)
        workload, own = change(workload, case, **lever_options)
        applied = msgspec.structs.replace(
            applied,
            split="; ".join(filter(None, (applied.split, own.split))) or None,
            rounds=applied.rounds or own.rounds,
            draws_apart=applied.draws_apart or own.draws_apart,
            heads=own.heads or applied.heads,
            notes=(*applied.notes, *own.notes),
            remark=partial(_first, applied.remark, own.remark),
            switch=partial(_first, applied.switch, own.switch) if applied.switch and own.switch else None,
        )
    turn = applied.switch
    if turn is None or not applied.keeps_own:
        return workload, applied, turn

    def switch(on: bool) -> None:
        own_calls.are_off = not on
        turn(on)

    return workload, applied, switch


def _first(first: Callable[..., Any], second: Callable[..., Any], *given: bool) -> Any:
    """Return what the first says of notes, or else the second; switches, which return None, are both turned."""
    return first(*given) or second(*given)


def _build(case: Case, build: Build, rank: int) -> tuple[Workload, list[Note]]:
    """Return the model on its device, in its precision, with its blocks; and notes on how it was made."""
    remarks: list[Note] = []
    batch = _seeded(case, build, case.seed + rank, []).batch if rank else None  # its model is freed before the next
    try:
        workload = _seeded(case, build, case.seed, remarks)
    except torch.OutOfMemoryError:
        if not case.is_rehearsed or not case.parallel or case.parallel.name != "fsdp2":
            raise
        workload = made_without_storages(build, case.torch_device)  # until FSDP2 shards it
    if rank:
        workload = msgspec.structs.replace(workload, batch=batch)
    # Compiled code has other kernels for tensors with known values, so there they are plain and their values unknown
    is_compiled = bool(compiled_modules(workload.module)) or case.strategy.name == "compile-budget"
    is_to_gpu = case.is_predicted and case.twin.device != "cpu"  # where a prediction's tensors stand for its own

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone() if is_to_gpu and is_real(tensor) else tensor.to(case.torch_device)
        return in_batch(tensor, copy, is_followed=case.is_rehearsed and not is_compiled)

    batch = pytree.tree_map_only(torch.Tensor, moved, workload.batch)
    module = workload.module if _is_unmade(workload) else workload.module.to(case.torch_device)
    workload = msgspec.structs.replace(workload, module=module, batch=batch)
    workload = in_precision(workload, case.precision)
    if case.blocks or not workload.blocks:
        workload = msgspec.structs.replace(workload, blocks=blocks.find_blocks(workload.module, case.blocks))
        if not case.blocks and not case.parallel:
            workload, remark = called_blocks.running(workload)
            remarks.extend([remark] if remark else [])
    if called_blocks.are_marked() and not case.blocks and not case.parallel:
        workload = called_blocks.marked(workload)
    return workload, remarks


def _seeded(case: Case, build: Build, seed: int, remarks: list[Note]) -> Workload:
    kept_state.seed(seed)
    if not case.is_rehearsed:
        with in_factory(case.torch_device):
            return build()
    workload, refusal = made_on_device(build, case.torch_device)
    pass_tests()
    if refusal:
        text = f"made on the CPU, since on a device that computes nothing {refusal}"
        remarks.append(Note(code="GCP040", text=text))
    return workload


def _is_unmade(workload: Workload) -> bool:
    return any(parameter.is_meta for parameter in workload.module.parameters())


def _from_catalogue(case: Case, data_directory: str | None) -> Build:
    build, options = catalogue.load(case.model, models.TABLE)
    given: dict[str, Any] = {"batch_size": case.batch_size, "data_directory": data_directory}
    options |= {key: value for key, value in given.items() if value is not None}
    return lambda: build(**options)


def count_calls(workload: Workload, calls: list[int]) -> None:
    """Count, from now on, the calls of each block's forward, below any checkpoint."""

    def counted(index: int, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        calls[index] += 1
        return forward(*arguments, **keywords)

    for index, name in enumerate(workload.blocks):
        block = workload.block(name)
        block.forward = partial(counted, index, block.forward)


def eval_remark(module: nn.Module) -> str | None:
    """Return a sentence on what is in eval mode while parameters train; None if that makes no difference."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    layers = [layer for layer in module.modules() if isinstance(layer, MODAL) and called_blocks.trains(layer)]
    resting = [layer for layer in layers if not layer.training]
    switched = [layer for layer in module.modules() if getattr(layer, "gradient_checkpointing", False) is True]
    has_no_effect = any(not layer.training for layer in switched)
    off = "; its own checkpointing is switched on, but has no effect in eval mode" if has_no_effect else ""
    if not resting and not off:
        return None
    count = f"{len(resting)} of {len(layers)} dropout and BatchNorm layers are" if layers else "the model is"
    return f"{count} in eval mode, as the factory returned them{off}; .train() in the factory changes it"


def summary(case: Case) -> ModelSummary:
    """Return a summary of the model's blocks. Raises Unsupported if it has none, and whatever the model raises."""
    workload = assemble(case.baseline).workload
    blocks.refuse_none(workload.blocks)
    outputs: dict[str, str] = {}

    def leave(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        outputs[name] = ", ".join(" x ".join(map(str, tensor.shape)) for tensor in tensors(output))

    named = {name: workload.block(name) for name in workload.blocks}
    handles = [block.register_forward_hook(partial(leave, name)) for name, block in named.items()]
    remark = None
    linked: list[bool | None] = [None] * len(workload.blocks)  # whether each block feeds only the next one
    try:
        linked = [*observe(workload).linked[:-1], None]
    except Unsupported as error:
        remark = str(error)
    for handle in handles:
        handle.remove()
    return ModelSummary(
        model=str(case.model),
        num_parameters=num_parameters(workload.module),
        batch_size=case.batch_size,
        blocks=tuple(
            BlockSummary(
                name=name,
                kind=type(block.called if isinstance(block, called_blocks.CalledBlock) else block).__name__,
                num_parameters=num_parameters(block),
                output=outputs.get(name, ""),
                feeds_next=feeds,
            )
            for (name, block), feeds in zip(named.items(), linked, strict=True)
        ),
        remark=remark,
    )
