"""Where trials run, as words: the engine, and which of its devices. Knows nothing of what is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from profiler.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from profiler.core.case import Trial
    from profiler.core.record import Environment
    from profiler.engines import Engine


class Where(NamedTuple):
    """What `--engine`, `--devices`, `--allow-parallel` and `--shard` say."""

    engine: str = "local"
    devices: str | None = None
    allow_parallel: bool = False
    shard: str | None = None

    def check(self, *, device: str | None) -> None:
        """Raises UserError for words that cannot go together."""
        if self.devices is not None and device is not None:
            raise UserError("--devices has no effect with --device", hint="leave one of them out")
        from profiler import engines

        if self.devices is not None and engines.EngineChoice(self.engine).name not in engines.HERE:
            hint = "it has devices of its own; leave one of them out"
            raise UserError(f"--devices has no effect with --engine {self.engine}", hint=hint)
        if self.allow_parallel and self.devices is None:
            raise UserError("--allow-parallel has no effect without --devices", hint="--devices 0,0 names one twice")

    def survey(self, engine: Engine, plan: Iterable[Trial] = ()) -> dict[str, Environment]:
        """The engine's devices as cases name them; it is told which of them to use at once.

        A `plan` that was made for several devices goes on with the first one where none are named. Raises UserError.
        """
        from profiler.request import device_choice

        devices = engine.survey()
        word = self.devices
        if word is None and any(trial.case.device == device_choice.SEVERAL for trial in plan):
            word = "0"
        if word is None:
            return devices
        engine.devices, seen = device_choice.several(word, devices, twice=self.allow_parallel)
        return seen
