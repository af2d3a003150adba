"""The variables of a launcher on several nodes (`situations.nodes`)."""

import os

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.situations import nodes


@effect(lambda case: case.get(nodes.Nodes) is not None)
class Nodes(Effect):
    """Environment variables that are set before wrapping, and set back in the end."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._before: dict[str, str | None] = {}

    def on_replica(self, replica: Replica) -> None:
        """Set this rank's variables."""
        del replica
        plan = self.case.get(nodes.Nodes)
        assert plan is not None
        rank = self.case.members[self.setup.rank]
        variables = plan.variables(rank, self.case.ranks_needed)
        for name in variables:
            self._before.setdefault(name, os.environ.get(name))
        os.environ.update(variables)

    def end(self, record: Record) -> None:
        """Set the variables back."""
        del record
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:  # In its old place: the order of variables is compared, too.
                os.environ[name] = value
