"""Digests of the results of a training loop's first two steps, taken while they run.

They equal those of `step_results.Results`, so that the steps whose bytes are read are also compared. Nothing that is
read for them stays in memory, and nothing is allocated on a GPU, except to coalesce sparse gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from profiler.measuring.meters import step_results
from profiler.measuring.meters.tensor_values import Digest, copied, digest_of
from profiler.training import missing_gradients, plain_state, random_sources
from profiler.training.workload import Mark, Workload, trained


class StepDigests:
    """Digests of two steps of a fresh workload."""

    def __init__(self, workload: Workload) -> None:
        self.digests: dict[str, str] = {}  # of both steps, once they are finished; empty if they could not be taken
        self._has_failed = False
        self.tells = False  # whether any gradient was finite and not zero
        self.trains = any(parameter.requires_grad for parameter in trained(workload).values())
        self.lost: tuple[str, ...] = ()  # parameters that train and got no gradient
        self._workload = workload
        self._before = plain_state.image(workload.module)
        self._num_steps = 0
        self._first: dict[str, str] = {}
        self._later = Digest()

    def watched(self, step: Callable[[Mark], torch.Tensor]) -> Callable[[Mark], torch.Tensor]:
        """Return the step, which is to be run twice, with digests taken."""

        def run(mark: Mark) -> torch.Tensor:
            self._num_steps += 1
            loss = step(self._looking(mark) if self._num_steps == 1 else mark)
            self._taken(lambda: self._of_loss(loss))
            return loss

        return run

    def _of_loss(self, loss: torch.Tensor) -> None:
        if self._num_steps == 2:
            self._later.add({"loss": copied(loss)})
            return
        random_states = random_sources.states(self._workload, loss.device)
        self._first |= {"loss": digest_of({"loss": copied(loss)}), "random": digest_of(random_states)}

    def finish(self) -> None:
        """Add the second step's gradients, while they exist, and complete the digests."""
        self._taken(lambda: self._later.add(step_results.gradients_of(self._workload)))
        self.digests = {} if self._has_failed else {**self._first, "second step": self._later.text()}
        del self._workload

    def _taken(self, look: Callable[[], None]) -> None:
        """Take a digest. What cannot be read (it is of a user's class, or memory runs out) must not end the step."""
        try:
            look()
        except Exception:  # noqa: BLE001  the equality pass, which reads the same, tells why
            self._has_failed = True

    def _looking(self, mark: Mark) -> Mark:
        """Return a mark that also takes digests after the backward, before the optimizer's step."""

        def marked(phase: str) -> None:
            if phase == "optimizer":
                self._taken(self._of_gradients)
            mark(phase)

        return marked

    def _of_gradients(self) -> None:
        module, gradients = self._workload.module, step_results.gradients_of(self._workload)
        moved = plain_state.moved(self._before, plain_state.image(module))
        self._first |= step_results.state_digests(gradients, step_results.buffers_of(module), moved)
        self.tells = step_results.tells(gradients.values())
        self.lost = missing_gradients.without_gradient(module)
