"""Cases and records made by hand, for tests that measure nothing."""

from typing import Any

from profiler.core.case import Case, Choice
from profiler.core.record import Built, Environment, Equality, PhaseBytes, Readings, Record

MIB = 2**20
UNTIMED = dict.fromkeys(("forward_seconds", "backward_seconds", "optimizer_seconds", "step_seconds"))


def case(strategy: str = "none", **fields: Any) -> Case:
    defaults: dict[str, Any] = {
        "model": Choice("mnist-cnn:channels=32"),
        "strategy": Choice(strategy),
        "optimizer": Choice("sgd"),
        "batch_size": 64,
        "device": "cpu",
    }
    return Case(**{**defaults, **fields})


def record(
    strategy: str = "none",
    *,
    peak: int = 100 * MIB,
    static: int = 20 * MIB,
    saved: int = 60 * MIB,
    seconds: tuple[float, ...] = (0.10, 0.11, 0.12),
    **fields: Any,
) -> Record:
    """An ok record; `fields` replace its own, its readings' and its case's. A quarter of static bytes are gradients."""
    readings: dict[str, Any] = {
        "static_bytes": {
            "parameters": static // 4,
            "buffers": 0,
            "gradients": static // 4,
            "optimizer": 0,
            "inputs": static // 2,
        },
        "start_bytes": static - static // 4,
        "saved_bytes": saved,
        "phases": {
            "forward": PhaseBytes(allocated=peak - MIB),
            "backward": PhaseBytes(allocated=peak),
            "optimizer": PhaseBytes(allocated=static),
        },
        "peak_bytes": peak,
        "peak_phase": "backward",
        "peak_gradient_bytes": 0,
        "forward_seconds": tuple(second / 3 for second in seconds),
        "backward_seconds": tuple(second / 2 for second in seconds),
        "optimizer_seconds": tuple(second / 6 for second in seconds),
        "step_seconds": seconds,
    }
    readings |= {name: fields.pop(name) for name in Readings.__struct_fields__ if name in fields}
    of_case = {name: fields.pop(name) for name in Case.__struct_fields__ if name in fields}
    defaults: dict[str, Any] = {
        "case": case(strategy, **of_case),
        "outcome": "ok",
        "built": Built(num_parameters=1000, num_blocks=301, data="synthetic"),
        "readings": Readings(**readings),
        "equality": Equality(loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True),
        "environment": Environment(
            gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name="a CPU"
        ),
    }
    return Record(**{**defaults, **fields})


def failed(strategy: str, outcome: str, detail: str, **fields: Any) -> Record:
    """A record without readings."""
    return record(strategy, outcome=outcome, detail=detail, readings=Readings(), equality=None, built=None, **fields)
