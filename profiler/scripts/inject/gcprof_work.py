"""What the operators of one step compute and move, from which `profiler/scripts/report.py` estimates its seconds.

Of the second step, as the first one makes optimizer state; imported by `gcprof_watch` beside it where strategies are
compared. Torch and the standard library alone.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

computing: Any = import_module("gcprof_computing")  # beside this file
lines: Any = import_module("gcprof_lines")
STEP = 2  # of the main optimizer, from 1
LARGE = 1 << 20  # bytes of a copy to the host which no log or metric makes
ATTENTION = os.path.join(lines.PACKAGE, "measuring", "meters", "attention_flops.py")  # knows torch alone, too
COMPILED = "a part of the step is compiled, and what that computes is not counted"
TO_HOST = "the step copies {} to the host, whose transfers have no rate"
REPLAYED = "the step replays a CUDA graph, and what that computes is not counted"
KINDS = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # of number, as rates of GPUs have it


class Work:
    """Counts what the operators of the second step compute and move; called with each, by what follows values."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._is_on = False
        self._calls: Counter[tuple[str, str, int, int]] = Counter()
        self._to_host = 0  # bytes
        self._num_replays = 0
        self._formulas = {**flop_registry, **runpy.run_path(ATTENTION)["FORMULAS"]}

    def stepped(self, step: int) -> None:
        """Begin or end to count, right after a step of the main optimizer."""
        if self._is_on:
            self._tell()
        self._is_on = step == STEP - 1

    def replayed(self) -> None:
        """Note that a CUDA graph is replayed."""
        self._num_replays += self._is_on

    def __call__(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not self._is_on or func.is_view:
            return
        given, made = computing.flat((args, kwargs)), computing.flat(out)
        devices = {tensor.device.type for tensor in (*given, *made)}
        if "cuda" not in devices:
            return
        if "cpu" in devices:
            copied = sum(tensor.nbytes for tensor in made if tensor.device.type == "cpu")
            self._to_host += copied if copied > LARGE else 0
            if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy):
                return
        kinds = {KINDS.get(tensor.dtype) for tensor in given or made}
        kind = "fp16" if "fp16" in kinds else "bf16" if "bf16" in kinds else "fp32"
        formula = self._formulas.get(func.overloadpacket)
        flops = int(formula(*args, **kwargs, out_val=out)) if formula else 0
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in (*given, *made))
        self._calls[str(func.overloadpacket), kind, flops, nbytes] += 1

    def _tell(self) -> None:
        dynamo = sys.modules.get("torch._dynamo.utils")
        is_compiled = bool(dynamo and dynamo.counters["stats"]["unique_graphs"])
        why = COMPILED if is_compiled else REPLAYED if self._num_replays else None
        if self._to_host:
            why = TO_HOST.format(f"{self._to_host / 2**20:.0f} MiB")
        calls = [[*call, num] for call, num in self._calls.items()]
        self._write({"kind": "work", "why": why, "calls": [] if why else calls})
        self._calls.clear()
