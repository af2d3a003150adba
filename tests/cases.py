"""What each rule's property draws from, for tests that hold trials of their own."""

from hypothesis.strategies import SearchStrategy

from ddp_invariants.case import MishapKind, PerturbationKind, ShardCase, TrainingCase
from ddp_invariants.invariants.shard import CHANCE_FREE
from ddp_invariants.scope import Scope
from ddp_invariants.strategies import PERTURBATIONS, shard_cases, training_cases

_PERTURBED: dict[str, tuple[PerturbationKind, ...]] = {
    "COMM-2": ("withheld", "late", "delays"), "COMM-3": ("withheld",), "COMM-5": ("none",),
    "LIVE-3": ("none",)}
_MISHAPS: dict[str, tuple[MishapKind, ...]] = {"LIVE-2": ("forward error", "backward error"), "LIVE-3": ("death",)}
_EVERY_KIND = ("INIT-3", "GRAD-4", "PARAM-5", "COMM-5")
_ANY_WORLD = ("LOSS-1", "LOSS-3", "GRAD-3", "PARAM-3", "LIVE-1")


def cases_for(rule: str, scope: Scope) -> SearchStrategy[TrainingCase] | SearchStrategy[ShardCase]:
    """What the property of a rule draws from."""
    if rule == "SHARD-5":
        return shard_cases(scope, least_samples=CHANCE_FREE)
    if rule.startswith("SHARD"):
        return shard_cases(scope, loader=rule == "SHARD-6")
    world_sizes = (2, 3, 4, 1) if rule in _ANY_WORLD or rule in _EVERY_KIND else (1,) if rule == "PARAM-4" else (2, 3, 4)
    return training_cases(scope, world_sizes=world_sizes,
                          least_steps=2 if rule in ("GRAD-5", "GRAD-9", "PARAM-3", "BUF-1", "COMM-4", "COMM-5") else 1,
                          buffers=rule in ("INIT-2", "BUF-1"), poisoned=rule == "GRAD-7", every_kind=rule in _EVERY_KIND,
                          perturbed=_PERTURBED.get(rule, PERTURBATIONS),
                          mishaps=_MISHAPS.get(rule, ()), rounds=4 if rule == "LIVE-4" else 1,
                          capped=rule in ("GRAD-6", "COMM-4", "COMM-5"), accumulated=rule in ("GRAD-8", "GRAD-12"),
                          unused=rule == "GRAD-9", crossed=rule in ("GRAD-1", "COMM-1"))
