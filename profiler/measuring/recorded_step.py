"""Records one step of a case on a CUDA device, in the form that explanations and timelines read."""

from __future__ import annotations

from profiler.core.case import Trial
from profiler.core.errors import Unsupported
from profiler.core.trace_data import Followed, live
from profiler.measuring.bench import Bench
from profiler.measuring.meters import allocations
from profiler.measuring.meters.recorded_trace import trace


def follow_case(trial: Trial) -> Followed:
    """Return a settled step of the trial's case, from the allocator's own history. Raises as `measure` does."""
    if trial.case.ranks:
        raise Unsupported("what ranks hold for each other has no category yet in a rehearsed step: leave the ranks out")
    bench = Bench(trial, lambda stage: None, None)
    bench.passes()  # for its note on what a device without arithmetic leaves out
    with allocations.recording_lines():
        built = bench.build()
        optimizer, step = built.trainer()
        for _ in range(built.workload.settling):
            step(lambda phase: None)
        with_modules = not built.applied.changes_kernels
        recording = allocations.record(built.workload, optimizer, step, with_modules=with_modules)
    followed = trace(recording)
    assert max(live(followed)) == recording.peak_bytes, "the trace has the allocator's peak"
    return Followed(
        trace=followed,
        blocks=built.workload.blocks,
        split=built.applied.split,
        has_own_optimizer=built.workload.optimizer is not None,
        remarks=tuple(note.text for note in (*built.applied.notes, *bench.all_notes())),
    )
