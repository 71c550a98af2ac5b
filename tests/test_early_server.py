"""The server that a command begins with: what is taken, what is dropped, and where there is none."""

from types import SimpleNamespace

import pytest

from profiler.core import server_process
from profiler.core.server_process import PRELOAD, PRELOAD_TO_REHEARSE, PRELOAD_TO_TRACE, start_early, take


@pytest.mark.parametrize(
    ("words", "preload"),
    [
        ("predict mlp --device cpu", PRELOAD_TO_TRACE),
        ("run mlp", PRELOAD),
        ("rehearse mlp", PRELOAD_TO_REHEARSE),
        ("run --device rehearse:t4", PRELOAD_TO_REHEARSE),
        ("plan mlp --device t4", PRELOAD_TO_REHEARSE),
        ("", None),
        ("run --dry-run", None),
        ("run --engine=slurm", None),
        ("rehearse --device t4 -- python train.py", None),
        ("plan --stages stages.json", None),
    ],
)
def test_a_command_has_the_server_that_it_will_need_before_its_words_are_read(monkeypatch, words, preload):
    started, dropped = list[SimpleNamespace](), list[bool]()

    def start(given, *, rehearses):
        started.append(SimpleNamespace(preload=given, rehearses=rehearses, drop=lambda: dropped.append(True)))
        return started[-1]

    monkeypatch.setattr(server_process, "_early", [])
    monkeypatch.setattr(server_process, "start", start)
    monkeypatch.delenv("GCPROF_HOLLOW", raising=False)

    start_early(words.split())

    assert [one.preload for one in started] == ([preload] if preload else [])
    if preload:
        assert started[0].rehearses == (preload is PRELOAD_TO_REHEARSE)
        assert [take(preload), take(preload)] == [started[0], None]
        start_early(words.split())
        assert take(("another",)) is None
        assert dropped == [True]
