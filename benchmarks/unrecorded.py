"""The reference in processes whose groups only forward calls; recording.py uses this file.

The groups record no call, no wait and no time of a gradient. An import of this file changes the
process that imports it. The file is therefore named as an implementation, because only ranks import
implementations.
"""

from collections.abc import Callable
from typing import Any

from ddp_invariants.ranks.groups import observed
from ddp_invariants.ranks.training.observer import Observer
from ddp_invariants.reference.ddp import DistributedDataParallel


class Unrecorded(DistributedDataParallel):
    """The reference, in a process that records nothing."""


def _bare(kind: str) -> Callable[..., Any]:
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        work = getattr(self._inner, kind)(*arguments, **options)
        self._works.append(
            work
        )  # The pool keeps a group only if its connections are known to be quiet.
        return work

    return forward


for _name, _member in list(vars(observed.ObservedGroup).items()):
    if callable(_member) and getattr(_member, "__qualname__", "").startswith("_forwarded"):
        setattr(observed.ObservedGroup, _name, _bare(_name))
Observer._watch_gradients = (  # type: ignore[method-assign]
    lambda self: None  # noqa: ARG005 - a method's one argument
)
