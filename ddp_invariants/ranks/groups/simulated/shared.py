"""The state that simulated ranks share: the collectives of each group, by the group's name."""

from dataclasses import dataclass, field

from ddp_invariants.ranks.groups.simulated.arrivals import Arrivals
from ddp_invariants.ranks.groups.simulated.promises import Promises
from ddp_invariants.ranks.groups.simulated.turns import Turns
from ddp_invariants.ranks.groups.simulated.works import Exchange, Message


@dataclass
class Group:
    """The state that the ranks of one simulated group share.

    Attributes:
        size: The number of ranks.
        exchanges: The collectives, by number.
        messages: Sends that nobody has received yet, in order.
        receives: Receives that no send has met yet, in order.
    """

    size: int
    exchanges: list[Exchange] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)


@dataclass
class Simulation:
    """The state that all groups of one simulated case share.

    Attributes:
        arrivals: The arrivals of results.
        promises: The ranks' futures.
        groups: The groups, by name.
    """

    arrivals: Arrivals
    promises: Promises
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def turns(self) -> Turns:
        """The ranks' turns."""
        return self.arrivals.turns

    def group(self, name: str, size: int) -> Group:
        """Return the group of a name, made at first use."""
        return self.groups.setdefault(name, Group(size))
