"""Several run folders become one."""

import os
from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record
from profiler.runs import store
from profiler.runs.merge import merge
from tests import make

HERE = Environment(
    gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name="a CPU", started="2026-11-20T10:00:00Z"
)


def shard(
    folder: Path, *records: Record, created: str = "2026-11-20T10:00:00+00:00", more: tuple[str, ...] = ()
) -> Path:
    """A run folder with these records, which were planned, and trials of further strategies, which were not run."""
    plan = (*(Trial(case=one.case, round=one.round) for one in records), *(Trial(case=make.case(one)) for one in more))
    manifest = store.Manifest(created=created, command="gcprof run", plan=plan, environment=HERE)
    store.save(folder, manifest=encode(manifest), trials=b"".join(encode(one) + b"\n" for one in records))
    for one in records:
        (folder / "logs" / f"{one.case.id}-{one.round}.log").write_text(f"{folder.name}: {one.case.strategy}")
    return folder


def record(strategy: str, **fields: object) -> Record:
    started = fields.pop("started", "2026-11-20T10:00:00Z")
    here = msgspec.structs.replace(HERE, **{"started": started, **fields.pop("environment", {})})
    return make.record(strategy, environment=here, **fields)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [
        shard(tmp_path / "a", record("none"), record("segments:k=2"), more=("all",)),
        shard(tmp_path / "b", record("none"), record("segments:k=4"), created="2026-11-20T11:00:00+00:00"),
        shard(tmp_path / "c", record("none", round=2), record("segments:k=2", round=2), record("sqrt")),
    ]


def test_of_two_results_of_a_trial_the_later_one_is_kept_and_told(tmp_path):
    early = shard(tmp_path / "early", record("none", peak=1 << 30, started="2026-11-20T10:00:00Z"))
    late = shard(tmp_path / "late", record("none", peak=1 << 29, started="2026-11-20T11:30:00+01:00"))

    for order in ([early, late], [late, early]):
        merged = merge(order)
        assert [one.readings.peak_bytes for one in merged.records] == [1 << 29]
        assert merged.remarks == ("none, round 1: the results differ; kept the later one, of 'late'",)
        assert [log.read_text() for log in merged.logs] == ["late: none"]


@pytest.mark.parametrize(("field", "value"), [("torch", "2.14.0"), ("num_threads", 8)])
def test_runs_whose_numbers_cannot_stand_beside_each_other_are_refused(tmp_path, field, value):
    one = shard(tmp_path / "one", record("none", environment={"num_threads": 2}))
    other = shard(tmp_path / "other", record("all", environment={"num_threads": 2, field: value}))

    with pytest.raises(UserError, match=f"{field}.* is .* in 'o.*' and .* in 'o") as refused:
        merge([one, other])

    assert refused.value.exit_code == 4
    assert "gcprof compare" in refused.value.hint


def test_a_torn_line_is_told_and_the_rest_is_merged(shards, tmp_path, capsys):
    with (shards[0] / "trials.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"ca')

    assert answer(["merge", *map(str, shards), "-o", str(tmp_path / "whole")]) == 0

    assert "warning: a: the last line of trials.jsonl is torn" in capsys.readouterr().err
    assert len(store.load(tmp_path / "whole").records) == len(merge(shards).records)


def test_logs_that_are_links_or_pipes_are_left_out(shards, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    log, other, *_ = sorted((shards[0] / "logs").iterdir())
    log.unlink()
    log.symlink_to("/proc/self/mem")
    other.unlink()
    os.mkfifo(other)
    linked = shards[1] / "logs"
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")

    assert answer(["merge", *map(str, shards), "-o", str(tmp_path / "whole")]) == 0

    kept = {path.read_text().partition(":")[0] for path in (tmp_path / "whole" / "logs").iterdir()}
    assert not kept & {shards[1].name, "mine"}
    assert not {log.name, other.name} & {path.name for path in (tmp_path / "whole" / "logs").iterdir()}
