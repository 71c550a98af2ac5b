"""Costs the stages of a script's model in the script's own process: one of its steps is traced on its hollow GPU.

Imported by `inject/gcprof_strategies.py` where a plan is asked for. The chain of stages is handed back as a line of the
watch; the process ends after the traced step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import torch
from torch import nn

from profiler.core import gpu_specs
from profiler.core.errors import NotOnce, Unsupported
from profiler.predicting.device_trace import DeviceTracer
from profiler.predicting.stage_operators import chain_of, estimated_seconds, proved_floor, spans
from profiler.scripts import applying
from profiler.scripts.report import WITHIN
from profiler.training import blocks as finding
from profiler.training import called_blocks
from profiler.training.observed_forward import observe
from profiler.training.strategies import fingerprint

KINDS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
SHARDED = "it is sharded, so how its blocks connect cannot be looked at"


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the script trains, and what a look at its forward showed."""

    module: Any
    blocks: tuple[str, ...]
    linked: tuple[bool, ...]  # which blocks feed the next alone
    prints: dict[str, tuple[str, ...]]  # the parameters of each block


class Costing:
    """Traces the step of this number, from 0: from the first call of the largest model to the optimizer's step."""

    def __init__(self, step: int, write: Callable[[dict[str, Any]], None], look: Callable[[bool], None]) -> None:
        """`look` begins or ends to have each call of a module asked for by `is_of`."""
        self._step, self._write, self._look = step, write, look
        self._models: list[_Model] = []
        self._following = ExitStack()
        self._tracer: DeviceTracer | None = None
        self._dropped: DeviceTracer | None = None
        self._precision = "fp32"

    def prepare(
        self,
        module: nn.Module,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        is_compiled: bool,
        optimizers: tuple[torch.optim.Optimizer, ...] = (),
    ) -> dict[str, Any]:
        """Look at the model by the arguments of one call, on fake tensors; return its number of blocks, or why not.

        Levers that have begun are applied to it.
        """
        try:
            applying.refuse_module(module, is_compiled=is_compiled)
            if any(hasattr(parameter, "_local_tensor") for parameter in module.parameters()):
                raise Unsupported(SHARDED)
            names = finding.find_blocks(module)
            applying.refuse_blocks(module, names)
            with applying.observing(module, names, (arguments, keywords)) as workload:
                try:
                    linked = observe(workload).linked
                except NotOnce:
                    workload = called_blocks.repeated(workload)
                    linked = observe(workload).linked
            called_blocks.follow_forwards(workload)
            tuple(applying.apply_levers(applying.met(workload, (arguments, keywords), optimizers=optimizers)))
        except Unsupported as error:
            return {"why": str(error)}
        prints = fingerprint(module, workload.blocks, workload.calls)
        self._models.append(_Model(module=module, blocks=workload.blocks, linked=linked, prints=prints))
        if self._step == 0:
            self._look(True)
        return {"num_blocks": len(workload.blocks), "why": None}

    def stepped(self, step: int) -> None:
        """Begin to look for the model's call, or end the step that is traced, and with it the process."""
        if step == self._step and self._models:
            self._look(True)
        elif self._tracer:
            self._following.close()
            self._tell(self._tracer)
            os._exit(0)

    def mark(self, phase: str) -> None:
        """Begin a phase; what is called without gradients before the backward is within the forward."""
        if self._tracer and not (self._tracer.phase == "forward" and phase in ("forward", *WITHIN)):
            self._tracer.mark(phase)

    @property
    def _largest(self) -> _Model:
        return max(self._models, key=lambda model: sum(one.nbytes for one in model.module.parameters()))

    def is_of(self, module: nn.Module) -> bool:
        """Whether the call of this module begins what is traced."""
        return module is self._largest.module

    def begin(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Begin to trace, right before the model is called with these arguments."""
        self._look(False)
        module = self._largest.module
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        self._precision = (
            f"amp-{KINDS.get(kind, 'fp16')}" if kind else KINDS.get(next(module.parameters()).dtype, "fp32")
        )  # as cases have it
        self._dropped = tracer = DeviceTracer(module, drops=True)  # follows one call of which autograd keeps nothing
        torch.clear_autocast_cache()  # the step's own call makes its casts, too
        try:
            with tracer.follow():
                tracer.mark("forward")
                module(*arguments, **keywords)
        except Exception:  # noqa: BLE001  the model may raise anything, and does so again in its own step
            self._dropped = None  # it cannot be made beforehand
        finally:
            torch.clear_autocast_cache()
        self._tracer = DeviceTracer(module, with_saves=True)
        self._following.enter_context(self._tracer.follow())
        self._tracer.mark("forward")

    def _tell(self, tracer: DeviceTracer) -> None:
        """Write the stages of the traced step: bytes as the allocator gave them, seconds by the GPU's rates."""
        model, rates = self._largest, gpu_specs.of_device(torch.cuda.get_device_name())
        assert rates, "a hollow GPU has the name of one whose rates are known"
        line = {"kind": "chain", "module": type(model.module).__name__, "chain": None, "why": None}
        try:
            try:
                trace = tracer.trace({}, {}, self._dropped, of_call=True)
            except Unsupported:  # the call that kept nothing ran other operators
                trace = tracer.trace({}, {})
            stage_spans = spans(trace, model.blocks, linked=model.linked)
            seconds = estimated_seconds(trace, stage_spans, {}, rates, self._precision)
            chain = chain_of(trace, stage_spans, model.prints, seconds, options={})
            least = proved_floor(trace, model.blocks)
            self._write({**line, "chain": msgspec.to_builtins(chain), "floor_bytes": least})
        except Unsupported as error:
            self._write({**line, "why": str(error)})
