"""Plans by the solver, predicted against measured: `python -m benchmarks.plans [MODEL ...]`.

Every model's frontier, with checkpoints one and three deep, is walked in even steps of memory. Each plan is traced and
then measured on the CPU, whose allocator's events are exact; its gradients are compared with those of the step without
checkpointing. Fails where a peak is off by more than 0.1 %, or a gradient by a bit.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from profiler.analysis.rows import verdict
from profiler.core import catalogue, plan_file
from profiler.core.case import FAKE, Case, Choice, Trial
from profiler.core.record import Record
from profiler.core.units import bytes_text, error_text
from profiler.engines.local import Local
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of, render
from profiler.planning.solver import Point, frontier
from profiler.training import models
from profiler.workflows.plan_fitting import under
from profiler.workflows.stages import calibrate, stages

MODELS = {  # with the batch
    "transformer:layers=8,width=64,sequence=128": 4,
    "benchmarks/uneven.py:images": 8,
    "mnist-cnn:channels=16": 16,
    "cifar-resnet:depth=3": 32,
    "tests/user_models/unet.py:segmentation": 8,
}
NUM_PLANS = 10  # of each model
BOUND = 0.001


def main() -> int:
    """Print every plan; the exit code says whether all were near and equal."""
    failed, count, worst = 0, 0, 0.0
    with Local(stage_seconds=300) as engine, tempfile.TemporaryDirectory() as folder:
        for model in sys.argv[1:] or MODELS:
            print(model, flush=True)
            for point, predicted, record in proved(engine, case_of(model, MODELS[model]), Path(folder) / "plan.json"):
                measured = record.readings.peak_bytes
                error = predicted / measured - 1 if measured else float("inf")
                is_fine = abs(error) <= BOUND and verdict(record) == "bit-equal"
                failed, count, worst = failed + (not is_fine), count + 1, max(worst, abs(error))
                print(
                    f"  {bytes_text(point.peak_bytes):>9} by costs, {bytes_text(predicted):>9} traced, "
                    f"{bytes_text(measured):>9} measured, {error_text(error)}, {verdict(record)}"
                    f"{notes(record)}  {render(point.plan)}{'' if is_fine else '  FAILED'}",
                    flush=True,
                )
    print(f"{count} plans, {failed} failed; the worst peak is {worst * 100:.3f} % off")
    return 1 if failed else 0


def case_of(model: str, batch_size: int) -> Case:
    """The model on the CPU, trained with momentum."""
    return Case(
        model=catalogue.resolve(Choice(model), models.TABLE),
        strategy=Choice("none"),
        optimizer=Choice("momentum"),
        batch_size=batch_size,
        device="cpu",
        warmup=0,
        samples=1,
    )


def proved(engine: Local, case: Case, path: Path) -> Iterator[tuple[Point, int, Record]]:
    """Plans with their traced peaks and measured records."""
    calibration = calibrate(engine, case)
    chain = stages(engine, case, calibration)
    (baseline,) = engine.run([Trial(case=case, passes=("equality",))])
    assert baseline.equality, baseline.detail
    for point in walked(chain):
        plan_file.write(plan_file_of(chain, point.plan), path)
        real = under(case, path)
        fake = msgspec.structs.replace(real, device=FAKE + real.twin.device)
        predicted, measured = engine.run(
            [
                Trial(case=fake, passes=("memory",), calibration=calibration),
                Trial(case=real, passes=("equality", "memory"), digests=baseline.equality.digests),
            ]
        )
        assert predicted.readings.peak_bytes, predicted.detail
        yield point, predicted.readings.peak_bytes, measured


def walked(chain: Chain) -> list[Point]:
    """Plans in even steps of memory, the deeper ones below what one level reaches first."""
    one, deep = frontier(chain, levels=1), frontier(chain, levels=3)
    below = [index for index, peak in enumerate(deep.peak_bytes) if peak < one.peak_bytes[0]]
    found = [deep.point(index) for index in below[:: max(1, len(below) // 3)]][:3]
    rest = NUM_PLANS - len(found)
    places = sorted({round(number * (len(one) - 1) / max(1, rest - 1)) for number in range(rest)})
    return [*found, *(one.point(place) for place in places)]


def notes(record: Record) -> str:
    """What the record says of buffers: BatchNorm's statistics are updated again."""
    return "".join(f", {note.code}" for note in record.notes if note.code == "GCP004")


if __name__ == "__main__":
    sys.exit(main())
