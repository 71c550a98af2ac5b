"""A model that is larger than the GPU, rehearsed under FSDP2: it is sharded before its storages are made."""

import msgspec
import pytest

from profiler.core.case import Case, Choice, Trial
from profiler.engines.local import Local
from tests.hollow import absent

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(absent() is not None, reason=str(absent()))]

CASE = Case(
    model=Choice("transformer:layers=8,sequence=8,width=1024"), strategy=Choice("all"), optimizer=Choice("adamw"),
    batch_size=1, device="rehearse:t4", parallel=Choice("fsdp2"), ranks=64, verify="off",
)  # fmt: skip


def rehearsed(engine, memory="", parallel="fsdp2"):
    case = msgspec.structs.replace(CASE, device=CASE.device + memory, parallel=Choice(parallel))
    (record,) = engine.run([Trial(case=case, passes=("memory",))])
    return record


def test_what_fits_only_in_shards_takes_the_bytes_of_its_shards():
    with Local(rehearses=True) as engine:
        whole = rehearsed(engine)
        memory = f":memory={whole.built.num_parameters * 4 * 3 // 4}"
        small = rehearsed(engine, memory)
        unsharded = rehearsed(engine, memory, "ddp")

    assert unsharded.outcome == "out_of_memory"
    assert small.outcome == "ok", small.detail
    assert small.readings.static_bytes == whole.readings.static_bytes
    assert small.readings.peak_bytes == whole.readings.peak_bytes
