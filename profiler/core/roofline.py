"""Estimates the seconds of a traced step on a GPU that may be absent: arithmetic, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from profiler.core.gpu_specs import Rates
from profiler.core.trace_data import Operator

# No kernel reaches the datasheet. With a fifth off, BERT-base's published +25 % (batch 64, on T4 and V100) comes out
# as +27 % where the first 10 of its 12 layers are checkpointed, and as +32 % where all are.
COMPUTE_EFFICIENCY = 0.8  # of the datasheet's FLOP per second, as large matrix products reach
BANDWIDTH_EFFICIENCY = 0.8  # of its bytes per second, as large elementwise kernels reach; an H200's host link did 0.86
LAUNCH_SECONDS = 3e-6  # from one kernel to the next, however little it does
PHASES = ("zero", "forward", "recompute", "backward", "optimizer")  # of a step; other phases may follow its end
RATIOS = "ratios of strategies are more accurate than seconds (BERT-base's published +25 % comes out as +27 to +32 %)"
FREE = (  # operators that launch no kernel: bookkeeping, and mere allocation
    "prim.",
    "profiler.",
    "aten.empty",
    "aten.new_empty",
    "aten._unsafe_view",
    "aten.lift_fresh",
    "aten._local_scalar_dense",  # in Adam, of step counts on the host
)


def roofline_seconds(operators: Iterable[Operator], rates: Rates, precision: str) -> dict[str, float]:
    """Return the seconds of forward, backward (recompute included), optimizer and step with ideal kernels.

    An operator takes the longer of its arithmetic and its memory traffic, plus one kernel launch (the roofline model:
    Williams, Waterman, Patterson 2009). Copies on a stream of their own run beside the rest of their phase, which takes
    the longer of the two. `precision` is that of a case; a GPU without bf16 units computes bf16 as fp32.
    """
    spans: dict[tuple[str, bool], float] = {}
    for operator in operators:
        place = operator.phase, operator.is_beside
        spans[place] = spans.get(place, 0.0) + operator_seconds(operator, rates, precision)
    zero, forward, recompute, backward, optimizer = (
        max(spans.get((phase, is_beside), 0.0) for is_beside in (False, True)) for phase in PHASES
    )
    return {
        "forward": forward,
        "backward": recompute + backward,
        "optimizer": optimizer,
        "step": zero + forward + recompute + backward + optimizer,
    }


def scaled(estimate: Mapping[str, float], *, measured: float, estimated: float) -> dict[str, float]:
    """Return the estimate scaled by the ratio of measured to estimated seconds of the step without checkpointing."""
    return {phase: value * measured / estimated for phase, value in estimate.items()}


def stated_error(rates: Rates, precision: str, *, is_scaled: bool = False) -> str:
    """Return the caveat that accompanies every estimate."""
    basis = f"estimated for ideal kernels at {COMPUTE_EFFICIENCY * 100:.0f} % of the datasheet of {rates.name}"
    scale = ", then scaled to the measured row without checkpointing" if is_scaled else ""
    lacking = "bf16" in precision and rates.flops.bf16 is None
    slow = "; it has no bf16 units, and its matrix products count as fp32" if lacking else ""
    return f"times are {basis}{scale}{slow}; {RATIOS}"


def operator_seconds(operator: Operator, rates: Rates, precision: str) -> float:
    """Return the seconds of one operator, as `roofline_seconds` counts them."""
    if operator.host_bytes:
        return operator.host_bytes / host_rate(rates) + LAUNCH_SECONDS
    if not (operator.flops or operator.moved_bytes) or operator.name.startswith(FREE):
        return 0.0
    computing = operator.flops / (COMPUTE_EFFICIENCY * _flops_rate(operator, rates, precision))
    moving = operator.moved_bytes / (BANDWIDTH_EFFICIENCY * rates.bandwidth)
    return max(computing, moving) + LAUNCH_SECONDS


def host_rate(rates: Rates) -> float:
    """Return the bytes per second of copies between pinned host memory and the device; 0 where it is not known."""
    return BANDWIDTH_EFFICIENCY * (rates.host_bandwidth or 0.0)


def _flops_rate(operator: Operator, rates: Rates, precision: str) -> float:
    """Return the FLOP per second for an operator.

    Autocast runs in 16 bits all operators whose FLOPs are counted: matrix products, convolutions, attention.
    """
    is_autocast = precision.startswith("amp-")
    kind = "fp32" if is_autocast and operator.phase == "optimizer" else precision.removeprefix("amp-")
    rate: float | None = getattr(rates.flops, kind)
    return rates.flops.fp32 if rate is None else rate
