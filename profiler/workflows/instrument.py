"""What answers for a GPU by its name: PyTorch's own CUDA code where it can run, else the estimate."""

from __future__ import annotations

from collections.abc import Callable

from profiler.engines.local import why_no_rehearsal
from profiler.request import device_choice


def for_gpus(word: str, *, say: Callable[[str], None], is_estimated: bool = False) -> str:
    """Return the devices of a command that needs none, as cases have them: `t4,h100` -> `rehearse:t4,rehearse:h100`.

    They are estimated (`fake:t4`) where the word says so, for a CPU, if `is_estimated`, and where this machine cannot
    rehearse them; why is then said. `cuda` is an H100. Raises UserError for a GPU that is not known.
    """
    if is_estimated or not device_choice.are_gpus(word):
        return word if device_choice.is_rehearsal(word) else device_choice.to_predict(word)
    asked = device_choice.to_rehearse("h100" if word == device_choice.SEVERAL else word)
    if why := why_no_rehearsal(asked):
        say(f"note: estimated, not rehearsed: {why}")
        return device_choice.to_predict(word)
    return asked


def planned(word: str | None, *, say: Callable[[str], None], is_estimated: bool = False) -> str | None:
    """Do as `for_gpus` for a GPU by its name; other devices are kept: they are measured, or say how they are known."""
    if word is None or not device_choice.is_gpu(word):
        return word
    return for_gpus(word, say=say, is_estimated=is_estimated)
