"""Perturbed timing (`TrainingCase.perturbation`), as far as a rank's training causes it."""

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup


@effect(lambda case: case.perturbation.kind == "withheld")
class Withheld(Effect):
    """Collectives whose results are withheld until the program waits for them."""

    def when_ready(self, record: Record, step: int) -> None:
        """Note the collectives for which the program did not wait."""
        in_flight = record.facts.setdefault("in_flight", [])
        in_flight += [[step, *call] for call in self.setup.session.in_flight()]


@effect(lambda case: case.perturbation.on_device)
class SlowDevice(Effect):
    """A device that is kept busy before each collective or each gradient."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._gradients = 0

    def before_gradient(self) -> None:
        """Keep the device busy before the next gradient, if the case asks for it."""
        if self.case.perturbation.kind == "slow computation":
            self._gradients += 1
            self.setup.rank_device.keep_busy(self.case.perturbation.milliseconds / 1000)

    def end(self, record: Record) -> None:
        """Note the number of gradients or collectives before which the device was busy."""
        if self.setup.rank_device.on_device:
            record.facts["slowed"] = self._gradients or sum(self.setup.session.counts())
