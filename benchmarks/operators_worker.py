"""One share of the operators on the hollow device, against their traces: a child of benchmarks.operators_hollow."""

from __future__ import annotations

from profiler.rehearsal.device import ASKED, open_if_asked

open_if_asked()  # before torch is imported

import json  # noqa: E402
import operator as operators  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from benchmarks.operators_common import COMMON  # noqa: E402
from benchmarks.operators_larger import larger  # noqa: E402
from profiler.core import gpu_specs  # noqa: E402
from profiler.core.errors import Unsupported  # noqa: E402
from profiler.core.trace_data import Allocation, Trace, live  # noqa: E402
from profiler.predicting.trace import matmul_workspaces  # noqa: E402
from profiler.predicting.trace.cuda_semantics import cuda_like  # noqa: E402
from profiler.predicting.trace.fake_tensors import fake_tensors  # noqa: E402
from profiler.predicting.trace.kernel_bytes import parts_of  # noqa: E402
from profiler.predicting.trace.matmul_workspaces import keeps_workspaces  # noqa: E402
from profiler.predicting.trace.tracer import Hidden, Tracer  # noqa: E402
from profiler.predicting.traced_case import DATA_DEPENDENT, taken_on_cuda  # noqa: E402
from profiler.rehearsal.device import parse  # noqa: E402
from profiler.training.workload import rounded, tensors  # noqa: E402

ENTRIES = 100_000  # of the allocator's history
DTYPES = (torch.float32, torch.bfloat16)
CRASHING = ("mode",)  # reads from the device how much there is of what, and uses that as addresses on the host
GUESSED = "what it does depends on its data"
Call = Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]


class Sample(NamedTuple):
    """An operator with what it is given, on the CPU."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    told: str


class Asked(NamedTuple):
    """What the allocator was asked for, in bytes as it rounds them up."""

    peak: int  # above what was there before
    requests: list[int]


def main(share: int, num_shares: int, seconds: float, most: int, names: list[str]) -> None:
    """Tell each sample's outcome, one line of JSON each."""
    warnings.simplefilter("ignore")  # samples are also of what is deprecated
    known = gpu_specs.find(parse(os.environ[ASKED]).gpu)
    workspace = matmul_workspaces.given_workspace(gpu_specs.workspace_bytes(known))
    hidden = taken_on_cuda(known, 0 if keeps_workspaces() else workspace)
    torch.zeros(1, device="cuda")
    end = time.monotonic() + seconds
    for number, sample in enumerate(_samples(names, most, share, num_shares)):
        if time.monotonic() > end:
            _tell(sample.name, ended=f"after {number} samples for want of time")
            return
        print(json.dumps({"begun": sample.name}), flush=True)
        _compare(sample, hidden, known.compute_capability)


def _compare(sample: Sample, hidden: Hidden, capability: tuple[int, int]) -> None:
    try:
        traced = _traced(sample, hidden, capability)
    except (*DATA_DEPENDENT, Unsupported):
        traced = None
    except Exception as error:  # noqa: BLE001  whatever goes wrong is a result
        _tell(sample.name, untraced=_line(error))
        return
    if traced is None:
        _tell(sample.name, left_out=GUESSED)
        return
    try:
        real = _real(sample)
    except Exception as error:  # noqa: BLE001  what this type or device cannot do
        _tell(sample.name, left_out=f"raises on the device: {type(error).__name__}", raised=_line(error))
        return
    only_real, only_traced = (Counter(one.requests) for one in (real, traced))
    _tell(
        sample.name,
        sample=sample.told,
        real=real.peak,
        traced=traced.peak,
        only_real=sorted((only_real - only_traced).elements(), reverse=True),
        only_traced=sorted((only_traced - only_real).elements(), reverse=True),
    )


def _samples(names: list[str], most: int, share: int, num_shares: int) -> Iterator[Sample]:
    """The larger ones first; each operator in one share."""
    for dtype in DTYPES:
        for number, (name, function, given) in enumerate(larger(names, dtype)):
            if number % num_shares == share:
                yield Sample(name, function, given, {}, _told(given))
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [(".".join(filter(None, (one.name, one.variant_test_name))), one) for one in op_db]
    chosen = [(name, one) for name, one in infos if (name in names or not names) and name not in CRASHING]
    ordered = sorted(chosen, key=lambda pair: pair[0] not in COMMON)
    for name, info in ordered[share::num_shares]:
        for dtype in DTYPES:
            if dtype in info.supported_dtypes("cuda"):
                yield from _own(name, info, dtype, most)


def _own(name: str, info: Any, dtype: torch.dtype, most: int) -> Iterator[Sample]:
    torch.manual_seed(0)
    try:
        found = list(info.sample_inputs("cpu", dtype, requires_grad=info.supports_autograd))
    except Exception as error:  # noqa: BLE001  what this type or build cannot do
        _tell(name, left_out="has no samples on the CPU", raised=_line(error))
        return
    function = _looked_up(info)
    for one in found[:: -(-len(found) // most) or 1]:
        given = (one.input, *one.args)
        yield Sample(name, function, given, one.kwargs, _told((given, one.kwargs)))


def _looked_up(info: Any) -> Callable[..., Any]:
    """The operator; where it is an attribute of torch, the one that is there when it is called."""
    find = operators.attrgetter(info.name)
    try:
        is_found = find(torch) is info.op
    except AttributeError:
        is_found = False
    return (lambda *given, **named: find(torch)(*given, **named)) if is_found else info.op


def _run(sample: Sample, move: Callable[[torch.Tensor], torch.Tensor], device: str, begin: Callable[[Any], Any]) -> Any:
    """Forward and backward; what they leave."""

    def own(one: Any) -> Any:
        if isinstance(one, torch.device) or one == "cpu":
            return torch.device(device)
        return move(one.detach().clone()).requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one

    given = pytree.tree_map_only((torch.Tensor, torch.device, str), own, (sample.arguments, sample.keywords))
    torch.manual_seed(0)
    with begin(given):
        out = sample.function(*given[0], **given[1])
        ends = [one for one in tensors(out) if one.requires_grad]
        leaves = [one for one in tensors(given) if one.requires_grad and one.is_leaf]
        if not ends or not leaves:
            return out, ()
        return out, torch.autograd.grad(ends, leaves, [torch.ones_like(one) for one in ends], allow_unused=True)


def _real(sample: Sample) -> Asked:
    def begin(given: Any) -> Any:
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, context=None, clear_history=True)
        return torch.enable_grad()

    try:
        kept = _run(sample, lambda one: one.to("cuda"), "cuda", begin)
        (events,) = torch._C._cuda_memorySnapshot(None)["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del kept
    there: dict[int, int] = {}  # by address; what is given back late, and was there before, is not in it
    peak = 0
    requests = []
    for one in events:
        if one["action"] == "alloc":
            requests.append(rounded(one["size"], "cuda"))
            there[one["addr"]] = requests[-1]
            peak = max(peak, sum(there.values()))
        elif one["action"] == "free_completed":
            there.pop(one["addr"], None)
    return Asked(peak, requests)


def _traced(sample: Sample, hidden: Hidden, capability: tuple[int, int]) -> Asked | None:
    """None where it asked for values of its data."""
    tracer = Tracer(nn.Module(), device="cuda", hidden=hidden)

    def begin(given: Any) -> Any:
        for one in tensors(given):
            tracer.hold(one, "", "")
        return tracer

    with fake_tensors() as fakes, cuda_like(capability):
        kept = _run(sample, fakes.from_tensor, "cpu", begin)
        last = len(tracer.operators)
        allocations = tuple(
            Allocation(one.nbytes, one.born, last if one.died is None else one.died, one.operator, "", "", "")
            for one in tracer.lives
        )
        if fakes.num_guesses:
            return None
    del kept
    held = live(Trace(allocations=allocations, operators=tuple(tracer.operators), marks=()))
    taken = [part for one in tracer.operators for part in one.requests or parts_of(one.hidden_bytes) if part > 0]
    requests = [one.nbytes for one in allocations if one.born] + [rounded(one, "cuda") for one in taken]
    return Asked(max(held) - held[0], requests)


def _told(given: Any) -> str:
    leaves = pytree.tree_leaves(given)
    shown = (f"{str(one.dtype)[6:]}{list(one.shape)}" if isinstance(one, torch.Tensor) else repr(one) for one in leaves)
    return " ".join(shown)[:160]


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def _tell(name: str, **told: Any) -> None:
    print(json.dumps({"name": name, **told}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    sys.stdout.flush()
    os._exit(0)  # autograd's threads may want an interpreter that is gone
