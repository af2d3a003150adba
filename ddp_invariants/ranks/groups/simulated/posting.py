"""The way in which a simulated rank posts its part of a collective."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ddp_invariants.ranks.groups.simulated import arguments, refusals
from ddp_invariants.ranks.groups.simulated.shared import Group, Simulation
from ddp_invariants.ranks.groups.simulated.works import Exchange, Post, SimulatedWork
from ddp_invariants.records.trace import UNEVEN


class Posting:
    """One rank in one group. It posts its part of each collective, and gets a work for it.

    Args:
        simulation: The case's simulation.
        group: The group.
        rank: This rank's number in the group.
    """

    def __init__(self, simulation: Simulation, group: Group, rank: int) -> None:
        self._simulation, self._group, self._rank, self._posted = simulation, group, rank, 0

    def __getattr__(self, name: str) -> Any:
        """Refuse a collective that has no simulation, unless torch only asks for an attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._simulation.turns.refuse(f"{name} has no simulation")

    def _require_sent(self, kind: str, tensors: Sequence[Tensor]) -> None:
        refusals.require_sent(self._simulation.turns, kind, tensors)

    def _root(self, kind: str, options: Any, named: Any) -> int:
        root = arguments.root(options, named)
        refusals.require_root(kind, root, self._group.size)
        return root

    def _post(
        self,
        kind: str,
        agreed: tuple[Any, ...],
        inputs: list[Tensor],
        outputs: list[Tensor],
        compute: Callable[[list[Post]], list[Any]],
        value: Any = None,
        *,
        waits: bool,
    ) -> Any:
        arrivals, rank = self._simulation.arrivals, self._rank
        arrivals.call()
        sent = inputs or outputs
        even = kind not in (*UNEVEN, "scatter")
        sizes = tuple(tensor.numel() for tensor in sent) if even else ()
        dtypes = frozenset(tensor.dtype for tensor in sent)
        post = Post(
            (kind, *agreed, dtypes, sizes),
            [tensor.detach().clone() for tensor in inputs],
            outputs,
            compute,
        )
        exchange = self._exchange()
        exchange.enter(rank, post)
        arrival = post.arrival = arrivals.start(
            lambda: exchange.complete, lambda: exchange.deliver(rank), waits=waits
        )
        for each in exchange.arrivals:
            arrivals.arrive(each)
        return SimulatedWork(
            arrivals,
            self._simulation.promises,
            lambda: exchange.complete,
            lambda: arrivals.due(arrival),
            lambda: arrivals.take(arrival),
            outputs if value is None else value,
            f"{kind} #{self._posted}",
        )

    def _exchange(self) -> Exchange:
        exchanges = self._group.exchanges
        while len(exchanges) <= self._posted:
            exchanges.append(Exchange(self._group.size))
        self._posted += 1
        return exchanges[self._posted - 1]
