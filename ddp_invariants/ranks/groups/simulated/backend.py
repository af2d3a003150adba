"""The simulated backend of one rank in one group: it posts collectives and matches them.

As over gloo, the n-th collective of a rank meets the n-th of every other rank in the group.
Ranks that call differently then never complete it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp

from ddp_invariants.ranks.groups.simulated import arithmetic
from ddp_invariants.ranks.groups.simulated.promises import Promises
from ddp_invariants.ranks.groups.simulated.turns import Turns
from ddp_invariants.ranks.groups.simulated.works import Exchange, Message, Post, SimulatedWork

_ANY = -1
"""The source of a receive from any rank."""


@dataclass
class Group:
    """What the ranks of one simulated group share.

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
    """What all groups of one simulated case share.

    Attributes:
        turns: The ranks' turns.
        promises: Their futures.
        early: True if results are written as soon as all ranks have posted; otherwise when
            they are waited for.
        groups: The groups, by name.
    """

    turns: Turns
    promises: Promises
    early: bool
    groups: dict[str, Group] = field(default_factory=dict)

    def group(self, name: str, size: int) -> Group:
        """Return the group of a name, made at first use."""
        return self.groups.setdefault(name, Group(size))


class SimulatedBackend:
    """The collectives of one rank in one group, by the names of torch's process groups.

    Args:
        simulation: The case's simulation.
        group: The group.
        rank: This rank's number in the group.
    """

    def __init__(self, simulation: Simulation, group: Group, rank: int) -> None:
        self._simulation, self._group, self._rank, self._posted = simulation, group, rank, 0

    def _set_group_name(self, name: str) -> None:
        """Do nothing: only the observed group has a name."""

    _set_group_desc = _set_group_name

    # Reductions.

    def allreduce(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Reduce one tensor for all ranks."""
        tensors, operation = _listed(tensors), _operation(options, named)
        arithmetic.require_reducible(operation, tensors)

        def compute(posts: list[Post]) -> list[Any]:
            results = [
                arithmetic.reduced(operation, [post.inputs[number] for post in posts])
                for number in range(len(tensors))
            ]
            return [results] * len(posts)

        return self._post("allreduce", (operation,), tensors, tensors, compute)

    def allreduce_coalesced(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Reduce several tensors for all ranks."""
        return self.allreduce(tensors, *options, **named)

    def reduce(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Reduce one tensor for the root; the other ranks' tensors stay as they are."""
        tensors, operation = _listed(tensors), _operation(options, named)
        root = _root(options, named)
        arithmetic.require_reducible(operation, tensors)

        def compute(posts: list[Post]) -> list[Any]:
            total = arithmetic.reduced(operation, [post.inputs[0] for post in posts])
            return [[total if rank == root else None] for rank in range(len(posts))]

        return self._post("reduce", (operation, root), tensors, tensors, compute)

    def reduce_scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Reduce a list of tensors, and give each rank one."""
        outputs, inputs = _listed(outputs), _nested(inputs)
        return self._reduce_scatter("reduce_scatter", outputs, inputs, options, named)

    def _reduce_scatter(
        self, kind: str, outputs: list[Tensor], inputs: list[Tensor], options: Any, named: Any
    ) -> Any:
        operation, own = _operation(options, named), slice(self._rank, self._rank + 1)
        arithmetic.require_reducible(operation, inputs[own])

        def compute(posts: list[Post]) -> list[Any]:
            return [
                [arithmetic.reduced(operation, [post.inputs[rank] for post in posts])]
                for rank in range(len(posts))
            ]

        return self._post(kind, (operation,), inputs, outputs, compute)

    def reduce_scatter_single(
        self, output: Tensor, whole: Tensor, *options: Any, **named: Any
    ) -> Any:
        """Reduce a tensor, and give each rank an equal part of it."""
        size = self._group.size
        if whole.numel() != output.numel() * size:
            raise RuntimeError(
                f"reduce_scatter: the input has {whole.numel()} elements, and the output of each "
                f"of {size} ranks {output.numel()}"
            )
        inputs = arithmetic.parts(whole, [output.numel()] * size)
        return self._reduce_scatter("reduce_scatter_single", [output], inputs, options, named)

    _reduce_scatter_base = reduce_scatter_single

    # Gathers.

    def broadcast(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Give all ranks the root's tensor."""
        tensors, root = _listed(tensors), _root(options, named)

        def compute(posts: list[Post]) -> list[Any]:
            sent = posts[root].inputs
            return [[None] * len(sent) if rank == root else sent for rank in range(len(posts))]

        return self._post("broadcast", (root,), tensors, tensors, compute)

    def allgather(self, outputs: Any, inputs: Any, *_options: Any, **_named: Any) -> Any:
        """Give all ranks the list of all ranks' tensors."""
        inputs = _listed(inputs)

        def compute(posts: list[Post]) -> list[Any]:
            return [[post.inputs[0] for post in posts]] * len(posts)

        return self._post("allgather", (), inputs, _nested(outputs), compute, outputs)

    def allgather_coalesced(self, outputs: Any, inputs: Any, *_options: Any, **_named: Any) -> Any:
        """Give all ranks all ranks' lists of tensors."""

        def compute(posts: list[Post]) -> list[Any]:
            return [[tensor for post in posts for tensor in post.inputs]] * len(posts)

        flattened = [tensor for tensors in outputs for tensor in tensors]
        return self._post("allgather_coalesced", (), list(inputs), flattened, compute, outputs)

    def all_gather_single(self, output: Tensor, own: Tensor, *_options: Any, **_named: Any) -> Any:
        """Give all ranks all ranks' tensors, one after another."""
        return self.all_gather_single_coalesced([output], [own])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, *_options: Any, **_named: Any
    ) -> Any:
        """Do so with several tensors."""
        for output, own in zip(outputs, inputs, strict=True):
            if output.numel() != own.numel() * self._group.size:
                raise RuntimeError(
                    f"all_gather: the output has {output.numel()} elements, and the input of each "
                    f"of {self._group.size} ranks {own.numel()}"
                )

        def compute(posts: list[Post]) -> list[Any]:
            results = [
                arithmetic.flat([post.inputs[number] for post in posts])
                for number in range(len(outputs))
            ]
            return [results] * len(posts)

        return self._post("all_gather_single", (), list(inputs), list(outputs), compute)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give the root the list of all ranks' tensors."""
        root = _root(options, named)
        here = _nested(outputs) if self._rank == root else []

        def compute(posts: list[Post]) -> list[Any]:
            gathered = [post.inputs[0] for post in posts]
            return [gathered if rank == root else [] for rank in range(len(posts))]

        return self._post("gather", (root,), _listed(inputs), here, compute, outputs)

    def scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give each rank one tensor of the root's list."""
        root = _root(options, named)
        sent = _nested(inputs) if self._rank == root else []

        def compute(posts: list[Post]) -> list[Any]:
            return [[tensor] for tensor in posts[root].inputs]

        return self._post("scatter", (root,), sent, _listed(outputs), compute)

    # Exchanges of different parts.

    def alltoall(self, outputs: Any, inputs: Any, *_options: Any, **_named: Any) -> Any:
        """Give each rank one tensor of every rank's list."""

        def compute(posts: list[Post]) -> list[Any]:
            return [[post.inputs[rank] for post in posts] for rank in range(len(posts))]

        return self._post("alltoall", (), list(inputs), list(outputs), compute)

    def all_to_all_single(
        self,
        output: Tensor,
        own: Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        *_options: Any,
        **_named: Any,
    ) -> Any:
        """Give each rank a part of every rank's tensor; sizes count rows, and are equal if empty."""
        row = own.numel() // own.shape[0] if own.dim() and own.shape[0] else 1
        equal = [own.numel() // self._group.size] * self._group.size
        sizes = [size * row for size in input_sizes] if input_sizes else equal

        def compute(posts: list[Post]) -> list[Any]:
            return [
                [arithmetic.flat([post.inputs[rank] for post in posts])]
                for rank in range(len(posts))
            ]

        del output_sizes
        return self._post("alltoall_base", (), arithmetic.parts(own, sizes), [output], compute)

    alltoall_base = all_to_all_single

    # Without data.

    def barrier(self, *_options: Any, **_named: Any) -> Any:
        """Wait for all ranks."""
        return self._post("barrier", (), [], [], lambda posts: [[] for _ in posts])

    def monitored_barrier(self, *_options: Any, **_named: Any) -> None:
        """Wait for all ranks, at once."""
        self.barrier().wait()

    # Point to point.

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Send a tensor; the send is done once it meets a receive."""
        return self._message(_listed(tensors)[0], self._rank, peer, tag, sends=True)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Receive a tensor from a rank."""
        return self._message(_listed(tensors)[0], peer, self._rank, tag, sends=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from any rank."""
        return self._message(_listed(tensors)[0], _ANY, self._rank, tag, sends=False)

    def _message(self, tensor: Tensor, source: int, target: int, tag: int, *, sends: bool) -> Any:
        self._simulation.turns.pass_on()
        message = Message(tensor, source, target, tag)
        others = self._group.receives if sends else self._group.messages
        met = next((other for other in others if message.meets(other)), None)
        if met is None:
            (self._group.messages if sends else self._group.receives).append(message)
        else:
            others.remove(met)
            message.join(met, sends=sends)
        verb, peer = ("send to", target) if sends else ("receive from", source)
        return SimulatedWork(
            self._simulation.turns,
            self._simulation.promises,
            lambda: message.met,
            lambda: None,
            [tensor],
            f"{verb} rank {'any' if peer == _ANY else peer}",
            source=lambda: message.source,
        )

    # All of them.

    def _post(
        self,
        kind: str,
        agreed: tuple[Any, ...],
        inputs: list[Tensor],
        outputs: list[Tensor],
        compute: Callable[[list[Post]], list[Any]],
        value: Any = None,
    ) -> Any:
        turns, rank = self._simulation.turns, self._rank
        turns.pass_on()
        even = kind not in ("allgather", "reduce_scatter", "alltoall", "alltoall_base")
        sent = inputs or outputs
        sizes = tuple(tensor.numel() for tensor in sent) if even and kind != "scatter" else ()
        dtypes = tuple({tensor.dtype for tensor in sent})
        post = Post(
            (kind, *agreed, dtypes, sizes),
            [tensor.detach().clone() for tensor in inputs],
            outputs,
            compute,
        )
        exchange = self._exchange()
        exchange.posts[rank] = post
        if self._simulation.early and exchange.complete:
            for peer in range(exchange.size):
                exchange.deliver(peer)
        return SimulatedWork(
            turns,
            self._simulation.promises,
            lambda: exchange.complete,
            lambda: exchange.deliver(rank),
            outputs if value is None else value,
            f"{kind} #{self._posted}",
        )

    def _exchange(self) -> Exchange:
        exchanges = self._group.exchanges
        while len(exchanges) <= self._posted:
            exchanges.append(Exchange(self._group.size))
        self._posted += 1
        return exchanges[self._posted - 1]


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _nested(tensors: Any) -> list[Tensor]:
    """Return the list in a list of one list, or the list itself."""
    listed = list(tensors)
    return list(listed[0]) if listed and not isinstance(listed[0], Tensor) else listed


def _operation(options: Any, named: Any) -> Any:
    for option in (*options, *named.values()):
        found = getattr(option, "reduceOp", option)
        if isinstance(found, ReduceOp | ReduceOp.RedOpType):
            return getattr(found, "op", found)
    return ReduceOp.SUM


def _root(options: Any, named: Any) -> int:
    for option in (*options, *named.values()):
        if hasattr(option, "rootRank"):
            return int(option.rootRank)
    return next((option for option in (*options, *named.values()) if type(option) is int), 0)
