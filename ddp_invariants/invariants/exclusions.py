"""Reasons for which a rule does not apply: a missing capability, or a declaration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations
from ddp_invariants.processes.backends import Backend


class Claims(Protocol):
    """The claims of an implementation that rules need; `discovery.scope.Scope` has them."""

    @property
    def declared(self) -> Declarations:
        """The declarations of the DDP."""

    @property
    def sampler(self) -> SamplerDeclarations:
        """The declarations of the sampler."""

    @property
    def backend(self) -> Backend:
        """The backend that ranks communicate over, and the device of their tensors."""

    def has(self, capability: str) -> bool:
        """Return whether the implementation offers a capability."""


@dataclass(frozen=True)
class Exclusion:
    """One reason for which a rule does not apply.

    Attributes:
        reason: The reason, as a report prints it.
        applies: A test for the claims of an implementation.
    """

    reason: str
    applies: Callable[[Claims], bool]


def lacks(reason: str, *capabilities: str) -> Exclusion:
    """Exclude a rule where an implementation offers none of some capabilities."""
    return Exclusion(reason, lambda claims: not any(claims.has(name) for name in capabilities))


HIDDEN = Exclusion(
    "hides its gradients (see PARAM-3)",
    lambda claims: claims.declared.gradients == "hidden",
)
"""Of rules that compare gradients."""
OWNED = Exclusion(
    "leaves each gradient to one rank, its owner",
    lambda claims: claims.declared.gradients == "owner",
)
"""Of rules that compare every rank's gradients."""
LOSSY = Exclusion("declares exactness = lossy", lambda claims: claims.declared.exactness == "lossy")
"""Of rules that compare values with expected ones."""
OWN_UPDATE = Exclusion(
    "declares update = own: what its steps compute is not known",
    lambda claims: claims.declared.update == "own",
)
"""Of rules that compare parameters after a step with expected ones."""
OWN_CONTRACT = Exclusion(
    "declares padding = own: it repeats or leaves out samples by a contract of its own",
    lambda claims: claims.sampler.padding == "own",
)
"""Of rules about the samples that the shards hold together."""
ENDLESS = Exclusion(
    "declares padding = endless: epochs follow one another in one stream",
    lambda claims: claims.sampler.padding == "endless",
)
"""Of rules about the end of an epoch."""
BY_ITSELF = Exclusion(
    "computes forward, backward and loss by itself",
    lambda claims: claims.declared.stack is not None,
)
"""Of rules that compare with a training step of the suite's own."""
SEEDED = Exclusion(
    "declares init = seed, so it broadcasts nothing (see INIT-4)",
    lambda claims: claims.declared.init == "seed",
)
"""Of rules about the broadcast at the start."""
NO_BUFFERS = lacks("supports no buffers", "buffers")
"""Of rules about buffers."""
UNBUCKETED = Exclusion("hides its gradients", lambda claims: claims.declared.gradients == "hidden")
"""Of rules about the buckets that gradients travel in."""
