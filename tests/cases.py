"""What each rule's property draws from, for tests that hold trials of their own."""

from hypothesis.strategies import SearchStrategy

from ddp_invariants.case import ShardCase, TrainingCase
from ddp_invariants.invariants.shard import CHANCE_FREE
from ddp_invariants.scope import Scope
from ddp_invariants.strategies import PERTURBATIONS, shard_cases, training_cases

_EVERY_KIND = ("INIT-3", "GRAD-4", "PARAM-5")
_ANY_WORLD = ("LOSS-1", "LOSS-3", "GRAD-3", "PARAM-3", "LIVE-1")


def cases_for(rule: str, scope: Scope) -> SearchStrategy[TrainingCase] | SearchStrategy[ShardCase]:
    """What the property of a rule draws from."""
    if rule == "SHARD-5":
        return shard_cases(scope, least_samples=CHANCE_FREE)
    if rule.startswith("SHARD"):
        return shard_cases(scope, loader=rule == "SHARD-6")
    world_sizes = (2, 3, 4, 1) if rule in _ANY_WORLD or rule in _EVERY_KIND else (1,) if rule == "PARAM-4" else (2, 3, 4)
    return training_cases(scope, world_sizes=world_sizes, least_steps=2 if rule in ("GRAD-5", "PARAM-3") else 1,
                          buffers=rule == "INIT-2", poisoned=rule == "GRAD-7",
                          perturbed=("withheld",) if rule == "COMM-3" else PERTURBATIONS,
                          capped=rule == "GRAD-6", accumulated=rule in ("GRAD-8", "GRAD-12"), every_kind=rule in _EVERY_KIND)
