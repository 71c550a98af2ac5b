"""The process that talks to the user never imports torch, from its first word to its last file."""

import pytest

from tests.program import modules_after


@pytest.mark.slow
def test_the_parent_of_a_whole_run_never_imports_torch(here):
    """A process that measures, writes all derived files, and then reads everything."""
    commands = (
        "run --model mlp --segments 1,2,4 --device cpu --rounds 2 --samples 1 -o results/run",
        "show", "show --samples", "show --json", "list", "export --to csv", "export --to latex", "export --to md",
        "plot --kind memory -o memory.png", "plot --kind time -o time.svg", "models", "strategies segments",
    )  # fmt: skip

    loaded = modules_after(*commands)

    assert "matplotlib" in loaded
    assert not {"torch", "torchvision"} & loaded
