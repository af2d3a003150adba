"""The simulated backend of one rank in one group: it posts collectives and matches them.

As over gloo, the n-th collective of a rank meets the n-th of every other rank in the group.
Ranks that call differently then never complete it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ddp_invariants.ranks.groups.simulated import arguments, arithmetic, refusals
from ddp_invariants.ranks.groups.simulated.posting import Posting
from ddp_invariants.ranks.groups.simulated.works import (
    Message,
    Post,
    SilentWork,
    SimulatedWork,
    memory,
)

_ANY = -1
"""The source of a receive from any rank."""


class SimulatedBackend(Posting):
    """The collectives of one rank in one group, by the names of torch's process groups."""

    def _set_group_name(self, name: str) -> None:
        """Do nothing: only the observed group has a name."""

    _set_group_desc = _set_group_name

    # Reductions.

    def allreduce(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Reduce one tensor for all ranks."""
        return self._all_reduced("allreduce", arguments.listed(tensors), options, named)

    def allreduce_coalesced(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Reduce several tensors for all ranks."""
        return self._all_reduced("allreduce_coalesced", arguments.listed(tensors), options, named)

    def _all_reduced(self, kind: str, tensors: list[Tensor], options: Any, named: Any) -> Any:
        operation = arguments.operation(options, named)
        self._require_sent(kind, tensors)
        arithmetic.require_reducible(operation, tensors)

        def compute(posts: list[Post]) -> list[Any]:
            results = [
                arithmetic.reduced(operation, [post.inputs[number] for post in posts])
                for number in range(len(tensors))
            ]
            return [results] * len(posts)

        sent = list(map(memory, tensors))
        return self._post(
            "allreduce",
            (operation,),
            sent,
            sent,
            compute,
            tensors,
            waits=arguments.waits(options, named),
        )

    def reduce(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Reduce one tensor for the root; the other ranks' tensors stay as they are."""
        tensors, operation = arguments.listed(tensors), arguments.operation(options, named)
        root = self._root("reduce", options, named)
        self._require_sent("reduce", tensors)
        arithmetic.require_reducible(operation, tensors)

        def compute(posts: list[Post]) -> list[Any]:
            total = arithmetic.reduced(operation, [post.inputs[0] for post in posts])
            return [[total if rank == root else None] for rank in range(len(posts))]

        sent = list(map(memory, tensors))
        return self._post(
            "reduce",
            (operation, root),
            sent,
            sent,
            compute,
            tensors,
            waits=arguments.waits(options, named),
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Reduce a list of tensors, and give each rank one."""
        outputs, inputs = arguments.listed(outputs), arguments.nested(inputs)
        refusals.require_length("reduce_scatter", inputs, self._group.size)
        return self._reduce_scatter("reduce_scatter", outputs, [inputs], options, named)

    def _reduce_scatter(
        self, kind: str, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any, named: Any
    ) -> Any:
        """Reduce lists of one tensor for each rank, and give each rank one of each list."""
        operation, size = arguments.operation(options, named), self._group.size
        sent = [tensor for tensors in inputs for tensor in tensors]
        self._require_sent(kind, [*sent, *outputs])
        if not all(tensor.is_contiguous() for tensor in (*sent, *outputs)):
            self._simulation.turns.refuse("it reduces and scatters tensors that are not contiguous")
        arithmetic.require_reducible(operation, sent)

        def compute(posts: list[Post]) -> list[Any]:
            return [
                [
                    arithmetic.reduced(
                        operation, [post.inputs[number * size + rank] for post in posts]
                    )
                    for number in range(len(inputs))
                ]
                for rank in range(size)
            ]

        return SilentWork(
            self._post(
                kind, (operation,), sent, outputs, compute, waits=arguments.waits(options, named)
            )
        )

    def reduce_scatter_single(
        self, output: Tensor, whole: Tensor, *options: Any, **named: Any
    ) -> Any:
        """Reduce a tensor, and give each rank an equal part of it."""
        return self.reduce_scatter_single_coalesced([output], [whole], *options, **named)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, wholes: Any, *options: Any, **named: Any
    ) -> Any:
        """Reduce several tensors, and give each rank an equal part of each."""
        inputs = []
        for output, whole in zip(outputs, wholes, strict=True):
            if whole.numel() != output.numel() * self._group.size or not whole.is_contiguous():
                self._simulation.turns.refuse("gloo may end the process at its reduce-scatter")
            inputs.append(arithmetic.parts(whole, [output.numel()] * self._group.size))
        return self._reduce_scatter("reduce_scatter_single", list(outputs), inputs, options, named)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Gathers.

    def broadcast(self, tensors: Any, *options: Any, **named: Any) -> Any:
        """Give all ranks the root's tensor."""
        tensors, root = arguments.listed(tensors), self._root("broadcast", options, named)
        self._require_sent("broadcast", tensors)

        def compute(posts: list[Post]) -> list[Any]:
            sent = posts[root].inputs
            return [[None] * len(sent) if rank == root else sent for rank in range(len(posts))]

        sent = list(map(memory, tensors))
        return self._post(
            "broadcast",
            (root,),
            sent,
            sent,
            compute,
            tensors,
            waits=arguments.waits(options, named),
        )

    def allgather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give all ranks the list of all ranks' tensors."""
        inputs, listed = arguments.listed(inputs), arguments.nested(outputs)
        refusals.require_length("allgather", listed, self._group.size)
        return self._all_gather(
            "allgather", [listed], inputs, waits=arguments.waits(options, named)
        )

    def _all_gather(
        self, kind: str, outputs: list[list[Tensor]], inputs: list[Tensor], *, waits: bool
    ) -> Any:
        """Give all ranks a list of all ranks' tensors for each tensor that they send."""
        self._require_sent(kind, inputs)
        for listed, own in zip(outputs, inputs, strict=True):
            refusals.require_alike("allgather", listed, own)

        def compute(posts: list[Post]) -> list[Any]:
            return [[post.inputs[number] for number in range(len(inputs)) for post in posts]] * len(
                posts
            )

        return self._post(
            kind, (), inputs, [out for listed in outputs for out in listed], compute, waits=waits
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give all ranks all ranks' lists of tensors."""
        refusals.require_length("allgather_coalesced", list(outputs), self._group.size)
        return self._all_gather(
            "allgather_coalesced",
            [list(each) for each in zip(*outputs, strict=True)],
            list(inputs),
            waits=arguments.waits(options, named),
        )

    def all_gather_single(self, output: Tensor, own: Tensor, *options: Any, **named: Any) -> Any:
        """Give all ranks all ranks' tensors, one after another."""
        return self.all_gather_single_coalesced([output], [own], *options, **named)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> Any:
        """Do so with several tensors."""
        size = self._group.size
        for output, own in zip(outputs, inputs, strict=True):
            if output.numel() != own.numel() * size:
                raise RuntimeError(
                    f"all_gather: the output has {output.numel()} elements, and the input of each "
                    f"of {size} ranks {own.numel()}"
                )
        chunks = [list(torch.chunk(output, size)) for output in outputs]
        return self._all_gather(
            "all_gather_single", chunks, list(inputs), waits=arguments.waits(options, named)
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give the root the list of all ranks' tensors."""
        inputs, root = arguments.listed(inputs), self._root("gather", options, named)
        self._require_sent("gather", inputs)
        here = arguments.nested(outputs) if self._rank == root else []
        if self._rank == root:
            refusals.require_length("gather", here, self._group.size)
            refusals.require_alike("gather", here, inputs[0])

        def compute(posts: list[Post]) -> list[Any]:
            gathered = [post.inputs[0] for post in posts]
            return [gathered if rank == root else [] for rank in range(len(posts))]

        return self._post(
            "gather", (root,), inputs, here, compute, waits=arguments.waits(options, named)
        )

    def scatter(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give each rank one tensor of the root's list."""
        outputs, root = arguments.listed(outputs), self._root("scatter", options, named)
        self._require_sent("scatter", outputs)
        sent = arguments.nested(inputs) if self._rank == root else []
        if self._rank == root:
            refusals.require_length("scatter", sent, self._group.size)
            refusals.require_alike("scatter", sent, outputs[0])

        def compute(posts: list[Post]) -> list[Any]:
            return [[tensor] for tensor in posts[root].inputs]

        taken = list(map(memory, outputs))
        return self._post(
            "scatter",
            (root,),
            list(map(memory, sent)),
            taken,
            compute,
            outputs,
            waits=arguments.waits(options, named),
        )

    # Exchanges of different parts.

    def alltoall(self, outputs: Any, inputs: Any, *options: Any, **named: Any) -> Any:
        """Give each rank one tensor of every rank's list."""
        outputs, inputs = list(outputs), list(inputs)
        for tensors in (inputs, outputs):
            refusals.require_length("alltoall", tensors, self._group.size)
        self._require_sent("alltoall", inputs)
        refusals.require_alike("alltoall", [*inputs, *outputs], inputs[0])

        def compute(posts: list[Post]) -> list[Any]:
            return [[post.inputs[rank] for post in posts] for rank in range(len(posts))]

        return self._post(
            "alltoall", (), inputs, outputs, compute, waits=arguments.waits(options, named)
        )

    def all_to_all_single(
        self,
        output: Tensor,
        own: Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        *options: Any,
        **named: Any,
    ) -> Any:
        """Give each rank a part of every rank's tensor; sizes count rows, and are equal if empty."""
        self._require_sent("alltoall_base", [own, output])
        if not (own.is_contiguous() and output.is_contiguous()):
            raise ValueError("Tensors must be contiguous")
        if output.dtype != own.dtype:
            raise RuntimeError("input tensor and output tensor must be of the same type")
        size = self._group.size
        if not input_sizes and own.numel() % size:
            self._simulation.turns.refuse("it splits a tensor amid its elements")
        sent = refusals.row_sizes(input_sizes or (), own, size)
        taken = refusals.row_sizes(output_sizes or (), output, size)

        def compute(posts: list[Post]) -> list[Any]:
            return [[post.inputs[rank] for post in posts] for rank in range(len(posts))]

        return self._post(
            "alltoall_base",
            (),
            arithmetic.parts(own, sent),
            arithmetic.parts(output, taken),
            compute,
            [output],
            waits=arguments.waits(options, named),
        )

    alltoall_base = all_to_all_single

    # Without data.

    def barrier(self, *options: Any, **named: Any) -> Any:
        """Wait for all ranks."""
        return self._post(
            "barrier",
            (),
            [],
            [],
            lambda posts: [[] for _ in posts],
            waits=arguments.waits(options, named),
        )

    def monitored_barrier(self, *_options: Any, **_named: Any) -> None:
        """Wait for all ranks, at once."""
        self.barrier().wait()

    # Point to point.

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Send a tensor; the send is done once it meets a receive."""
        return self._message(arguments.listed(tensors)[0], self._rank, peer, tag, sends=True)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Receive a tensor from a rank."""
        return self._message(arguments.listed(tensors)[0], peer, self._rank, tag, sends=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from any rank."""
        return self._message(arguments.listed(tensors)[0], _ANY, self._rank, tag, sends=False)

    def _message(self, tensor: Tensor, source: int, target: int, tag: int, *, sends: bool) -> Any:
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")
        if not sends and source == self._rank:
            raise RuntimeError("Pair is not connected")
        self._simulation.arrivals.call()
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
            self._simulation.arrivals,
            self._simulation.promises,
            lambda: message.met,
            lambda: message.met,
            lambda: None,
            [tensor],
            f"{verb} rank {'any' if peer == _ANY else peer}",
            source=None if sends else lambda: message.source,
        )
