"""A model on its device, asked for the stages that plans are made of: what `stages`, `plan` and `max-batch` share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.core.case import Calibration, Case
    from profiler.core.record import Environment
    from profiler.engines import Engine
    from profiler.planning.chain import Chain
    from profiler.request.spec import Request


FLAGS = ("optimizer", "batch_size", "precision", "accumulate", "blocks", "device")  # of a model, by their field


def flag(name: str) -> str:
    """A field as users write it: batch_size -> --batch-size."""
    return f"--{name.replace('_', '-')}"


class Model:
    """A model that was asked for, with an engine while it is entered. Raises UserError for more than one case."""

    def __init__(self, words: Request) -> None:
        from profiler.request import device_choice

        self._words = words
        self._checked(device_choice.any_device)  # before torch is imported, which takes seconds
        self._calibration: Calibration | None = None
        self._is_calibrated = False
        self.remarks: tuple[str, ...] = ()

    def __enter__(self) -> Model:
        from profiler import engines
        from profiler.request import device_choice

        with ExitStack() as stack:  # which ends the engine where the device is refused
            self.engine: Engine = stack.enter_context(engines.connect())
            self.devices: dict[str, Environment] = self.engine.survey()
            self.case: Case = self._checked(lambda word: device_choice.choose_device(word, list(self.devices)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def title(self) -> str:
        """What is planned for, in one line."""
        from profiler.views.tables.columns import batch

        case = self.case
        return f"{case.model}, {batch(case)}, {case.optimizer}, {case.precision}, {case.device}"

    @property
    def words(self) -> list[str]:
        """The model and the flags that it was asked for with, for the next command."""
        asked = [(name, getattr(self._words, name)) for name in FLAGS]
        flags = [word for name, value in asked if value is not None for word in (flag(name), str(value))]
        return [str(self._words.model), *flags]

    def calibration(self) -> Calibration | None:
        """What operators hide on the device, measured once."""
        from profiler.workflows import planner

        if not self._is_calibrated:
            self._calibration, self._is_calibrated = planner.calibrate(self.engine, self.case), True
        return self._calibration

    def chain(self) -> Chain:
        """The stages and their costs, measured or estimated."""
        import msgspec

        from profiler.workflows import planner

        chain = planner.stages(self.engine, self.case, self.calibration())
        return msgspec.structs.replace(chain, made_for=self.title)

    def _checked(self, choose: object) -> Case:
        from profiler.request import spec

        plan = spec.plan(self._words, choose)  # type: ignore[arg-type]
        self.remarks = plan.remarks
        cases = list(dict.fromkeys(trial.case for trial in plan.trials))
        if len(cases) > 1:
            raise UserError("only one model can be planned at once", hint="name one model, batch size and precision")
        return cases[0]
