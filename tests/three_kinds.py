"""A run that holds one case three times: measured, rehearsed and predicted."""

import msgspec
from msgspec.structs import fields

from profiler.core.record import Environment, Readings, Record
from tests import make
from tests.make import MIB

H100 = "NVIDIA H100 80GB HBM3"
REHEARSED_ON = ("rehearse:h100", "cuda:0")  # a word that says so, and a GPU whose name says so
MEASURED_ON = "cuda:1"
PEAKS = {"measured": 100 * MIB, "rehearsed": 96 * MIB, "predicted": 99 * MIB}


def measured(strategy: str = "none", *, peak: int = PEAKS["measured"]) -> Record:
    return _on(MEASURED_ON, H100, strategy, peak)


def predicted(strategy: str = "none", *, peak: int = PEAKS["predicted"], device: str = "fake:h100") -> Record:
    record = _on(device, H100, strategy, peak)
    return msgspec.structs.replace(record, equality=None)


def rehearsed(strategy: str = "none", *, peak: int = PEAKS["rehearsed"], device: str = "rehearse:h100") -> Record:
    """Without times and gradients, as every rehearsal is."""
    record = _on(device, f"Hollow {H100}", strategy, peak)
    times = {field.name: field.default for field in fields(Readings) if field.name.endswith("_seconds")}
    readings = msgspec.structs.replace(record.readings, **times)
    return msgspec.structs.replace(record, readings=readings, equality=None)


def of_every_kind(device: str = "rehearse:h100") -> list[Record]:
    """Two strategies of each kind, the second at half the peak; rehearsed on this device."""
    return [
        record
        for strategy, share in (("none", 1), ("all", 2))
        for record in (
            measured(strategy, peak=PEAKS["measured"] // share),
            rehearsed(strategy, peak=PEAKS["rehearsed"] // share, device=device),
            predicted(strategy, peak=PEAKS["predicted"] // share, device="fake:h100"),
        )
    ]


def _on(device: str, name: str, strategy: str, peak: int) -> Record:
    environment = Environment(
        gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name=name, device_bytes=1000 * MIB,
        started="2026-11-20T17:49:00Z",
    )  # fmt: skip
    saved, static = peak // 2, 10 * MIB
    case = make.case(strategy, device=device)
    return make.record(strategy, peak=peak, saved=saved, static=static, case=case, environment=environment)
