"""CUDA graphs in rehearsed scripts: captured to the byte as without the watch, with collectives, and replayed."""

from __future__ import annotations

import pytest

from tests.scripts.runs import TWO, control, copied, rehearsed


class Pair:
    """A script run without the watch, then watched."""

    def __init__(self, words, here, kept, num_gpus=1):
        copied(here)
        self.control = control(words, cwd=here, kept=kept, num_gpus=num_gpus, messages=True)
        self.watched = rehearsed(words, cwd=here, num_gpus=num_gpus)
        for run in (self.control, self.watched):
            assert run.exit_code == 0, run.said
        assert self.watched.figures == self.control.figures

    def say(self, text):
        return [run.said.count(text) for run in (self.control, self.watched)]


@pytest.fixture(scope="module")
def graphs(hollow, tmp_path_factory):
    return Pair(("python", "graphs.py"), tmp_path_factory.mktemp("graphs"), tmp_path_factory.mktemp("kept"))


@pytest.mark.slow
def test_what_a_graph_allocates_is_in_its_own_pool(graphs):
    """Gradients, which another thread allocates, and what a second stream does, too."""
    assert graphs.say("in the graph's own pool: True") == graphs.say("beside it: True") == [1, 1]


@pytest.mark.slow
def test_each_replay_of_a_step_is_a_step(graphs):
    (process,) = graphs.watched.document["variants"][0]["processes"]
    num = {phase["name"]: phase["num"] for phase in process["phases"]}

    assert process["num_steps"] == 3 + 5  # before the capture, and replays
    assert num["graph replay"] == 5


@pytest.mark.slow
def test_a_script_ends_after_as_many_replays_as_steps_are_asked_for(graphs, hollow, tmp_path):
    done = rehearsed(("python", "graphs.py"), "--steps", "5", cwd=copied(tmp_path))

    (process,) = done.document["variants"][0]["processes"]
    assert done.exit_code == 0
    assert process["num_steps"] == 5
    assert "in the graph's own pool" not in done.said


@pytest.mark.nightly
def test_compiled_steps_are_recorded_once_as_without_the_watch(hollow, tmp_path_factory):
    words = ("python", "reduce_overhead.py")
    pair = Pair(words, tmp_path_factory.mktemp("compiled"), tmp_path_factory.mktemp("kept"))

    for run in (pair.control, pair.watched):
        assert "compiled 1 times, recorded 3 graphs" in run.said  # forward, backward, and one that holds their pool
    assert pair.watched.printed == pair.control.printed


@pytest.mark.nightly
def test_collectives_are_captured(hollow, tmp_path_factory):
    words = (*TWO, "29751", "captured_ranks.py")
    pair = Pair(words, tmp_path_factory.mktemp("ranks"), tmp_path_factory.mktemp("kept"), num_gpus=2)

    assert pair.say(": replayed") == [2, 2]
    assert pair.watched.printed == pair.control.printed
