"""Simulated collectives under way: one exchange among ranks, and each rank's handle of it."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddp_invariants.ranks.groups.simulated.arrivals import Arrival, Arrivals
from ddp_invariants.ranks.groups.simulated.promises import Promise, Promises
from ddp_invariants.ranks.groups.simulated.turns import Ready

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d

Compute = Callable[[list["Post"]], list[list[Tensor | None]]]
"""Computes each rank's results from all ranks' posts, in the order of their outputs."""


@dataclass
class Post:
    """One rank's part of a collective.

    Attributes:
        call: The facts that all ranks must call alike: kind, operation or root, dtypes and sizes.
        inputs: Copies of the tensors that the rank sends.
        outputs: The tensors that take its results.
        compute: Computes the results of all ranks.
        arrival: When its results are written; None before the post is matched.
    """

    call: tuple[Any, ...]
    inputs: list[Tensor]
    outputs: list[Tensor]
    compute: Compute
    arrival: Arrival | None = None


@dataclass
class Exchange:
    """One collective of a group.

    Attributes:
        size: The number of ranks in the group.
        posts: Their posts, by rank.
        complete: True once all ranks have posted, and alike. Every rank that waits asks for it.
    """

    size: int
    posts: dict[int, Post] = field(default_factory=dict)
    complete: bool = False
    _results: list[list[Tensor | None]] | None = None

    def enter(self, rank: int, post: Post) -> None:
        """Enter a rank's post."""
        self.posts[rank] = post
        if len(self.posts) == self.size:
            self.complete = all(other.call == post.call for other in self.posts.values())

    @property
    def arrivals(self) -> list[Arrival]:
        """The arrivals of the results at the ranks that have posted."""
        return [post.arrival for post in self.posts.values() if post.arrival is not None]

    def deliver(self, rank: int) -> None:
        """Write a rank's results to its outputs."""
        post = self.posts[rank]
        if self._results is None:
            self._results = post.compute([self.posts[peer] for peer in range(self.size)])
        with torch.no_grad():
            for output, result in zip(post.outputs, self._results[rank], strict=True):
                _write(output, result)


def _write(output: Tensor, result: Tensor | None) -> None:
    if result is None:
        return
    if output.layout == torch.strided:
        output.detach().copy_(result.view(output.shape))
    else:  # A detached sparse tensor would get indices and values of its own.
        output.copy_(result)


def memory(tensor: Tensor) -> Tensor:
    """Return a tensor's elements as gloo takes them: in the order of memory, from the first on.

    For a transposed tensor the order differs from that of the tensor's rows. For a slice of
    columns the elements of other columns are among them. A bool is sent as a byte.
    """
    if tensor.layout != torch.strided:
        return tensor
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elements = tensor.detach().as_strided((tensor.numel(),), (1,))
    return elements.view(torch.uint8) if elements.dtype == torch.bool else elements


@dataclass(eq=False)
class Message:
    """A send or a receive.

    Attributes:
        tensor: The tensor that is sent or received.
        source: The rank that sends; negative for any.
        target: The rank that receives.
        tag: Sends meet receives of the same tag.
        met: True once it has met its other half.
    """

    tensor: Tensor
    source: int
    target: int
    tag: int
    met: bool = False

    def meets(self, other: "Message") -> bool:
        """Return whether the other is this one's other half."""
        return (
            self.target == other.target
            and self.tag == other.tag
            and (self.source == other.source or min(self.source, other.source) < 0)
        )

    def join(self, other: "Message", *, sends: bool) -> None:
        """Move the bytes between this half and the other one; a receive may have room for more."""
        sent, received = (self, other) if sends else (other, self)
        content = _bytes_of(sent.tensor)
        _bytes_of(received.tensor)[: content.numel()].copy_(content)
        self.source = other.source = sent.source
        self.met = other.met = True


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


class SilentWork(_c10d.Work):  # type: ignore[misc]  # the base class has no type stubs
    """One rank's handle of a reduce-scatter: as over gloo, it only knows how to wait."""

    def __init__(self, inner: "SimulatedWork") -> None:
        super().__init__()
        self._inner = inner

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Wait for the result."""
        return self._inner.wait(timeout)

    def synchronize(self) -> None:
        """Wait for the result."""
        self._inner.wait()

    def is_completed(self) -> bool:
        """Return False, as gloo does even after the end."""
        self._inner.is_completed()
        return False


class SimulatedWork(_c10d.Work):  # type: ignore[misc]  # the base class has no type stubs
    """One rank's handle of a collective under way."""

    def __init__(
        self,
        arrivals: Arrivals,
        promises: Promises,
        ready: Ready,
        due: Ready,
        take: Callable[[], None],
        value: Any,
        words: str,
        source: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._arrivals, self._promises = arrivals, promises
        self._ready, self._due, self._take = ready, due, take
        self._value, self._words, self._source = value, words, source
        self._future: Any = None
        self._waited = False

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Hand on until all ranks have posted, and take the results."""
        del timeout
        self._arrivals.wait(self._ready, self._words)
        self._take()
        self._waited = True
        return True

    def synchronize(self) -> None:
        """Wait, like `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Let other ranks run, and return whether all have posted."""
        if not self._ready():
            self._arrivals.look()
        if self._ready():
            self._take()
            return True
        return False

    def is_success(self) -> bool:
        """Return whether all ranks have posted."""
        return self._ready()

    def exception(self) -> None:
        """Return None: a simulated collective does not fail."""

    def result(self) -> Any:
        """Return the tensors that the collective wrote."""
        return self._value

    def get_future(self) -> Any:
        """Return a future of the result, which is complete after a `wait`."""
        if self._future is None and self._waited:
            self._future = torch.futures.Future()
            self._future.set_result(self._value)
        if self._future is None:
            self._future = self.promise(self._take, lambda: self._value)
        return self._future

    def promise(self, take: Callable[[], object], value: Callable[[], Any]) -> Any:
        """Return a future that is completed once all ranks have posted.

        Args:
            take: Called before.
            value: Returns the future's value.
        """
        return self._promises.make(Promise(self._ready, self._due, take, value, self._words))

    def source_rank(self) -> int:
        """Return the rank that sent what was received.

        Raises:
            RuntimeError: Nothing is received.
        """
        if self._source is None:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv"
            )
        return self._source()

    _source_rank = source_rank
