"""What a real step asks PyTorch's allocator for, and what the traced step knows of: in a child of the hollow device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.case import Case, decode
from profiler.engines.replies import tell
from profiler.measuring.meters.operators import operator_name
from profiler.predicting.traced_case import trace_case
from profiler.rehearsal import device
from profiler.training.assemble import assemble
from profiler.training.workload import GRANULE

ENTRIES = 500_000  # of the allocator's history
Request = tuple[str, int]  # the operator, and the bytes as the allocator rounds them


class _Named(TorchDispatchMode):
    """Writes the operator at work beside each of the allocator's requests."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch._C._cuda_setMemoryMetadata(operator_name(func))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch._C._cuda_setMemoryMetadata("")


def compare(request: str, channel: int) -> None:
    """Tell the requests of a rehearsed case that only the real step has, and those that only its trace has."""
    case: Case = decode(request, Case)
    device.choose(case.device)
    real, traced = _real(case), _traced(case.foreseen)
    sizes = Counter({}), Counter({})
    for count, requests in zip(sizes, (real, traced), strict=True):
        for (_, nbytes), times in requests.items():
            count[nbytes] += times
    tell(
        channel,
        {
            "real": _lines(real, sizes[0] - sizes[1]),
            "traced": _lines(traced, sizes[1] - sizes[0]),
            "requests": [sizes[0].total(), sizes[1].total()],
        },
    )


def _lines(requests: Counter[Request], left: Counter[int]) -> list[tuple[int, int, str]]:
    """Size and number of what has no counterpart, the largest first, with the operators that ask for such a size."""
    operators: dict[int, list[str]] = {}
    for (operator, nbytes), times in requests.items():
        operators.setdefault(nbytes, []).append(f"{operator or '(outside of operators)'} {times}")
    return [(nbytes, times, ", ".join(operators[nbytes])) for nbytes, times in sorted(left.items(), reverse=True)]


def _real(case: Case) -> Counter[Request]:
    """Of a second step."""
    _, step = assemble(case).trainer()
    step(lambda phase: None)
    torch.cuda.memory._record_memory_history(max_entries=ENTRIES, context=None)
    with _Named():
        step(lambda phase: None)
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    return Counter((one["user_metadata"], _rounded(one["size"])) for one in events if one["action"] == "alloc")


def _traced(case: Case) -> Counter[Request]:
    _, trace, _ = trace_case(case)
    born = Counter((one.operator, _rounded(one.nbytes)) for one in trace.allocations if one.born)
    hidden = [(one.name, nbytes) for one in trace.operators for nbytes in one.requests or (one.hidden_bytes,)]
    return born + Counter((operator, _rounded(nbytes)) for operator, nbytes in hidden if nbytes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE["cuda"]) * GRANULE["cuda"]
