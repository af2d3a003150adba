"""The reference in processes whose groups only forward: nothing noted, no wait, no gradient's time; for recording.py.

Importing this file changes the process it is imported in, which is why it is named as an
implementation: ranks import those, and nothing else does.
"""

from collections.abc import Callable
from typing import Any

from ddp_invariants.ranks.groups import observed
from ddp_invariants.ranks.training import run
from ddp_invariants.reference.ddp import DistributedDataParallel


class Unrecorded(DistributedDataParallel):
    """The reference."""


def _bare(kind: str) -> Callable[..., Any]:
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        work = getattr(self._inner, kind)(*arguments, **options)
        self._works.append(
            work
        )  # So that connections are known to be quiet, without which no group could be kept.
        return work

    return forward


for _name, _member in list(vars(observed.ObservedGroup).items()):
    if callable(_member) and getattr(_member, "__qualname__", "").startswith("_forwarded"):
        setattr(observed.ObservedGroup, _name, _bare(_name))
run.Run._watch_gradients = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005 - a method's one argument
