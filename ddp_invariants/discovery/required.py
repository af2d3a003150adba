"""Capabilities and numbers of ranks without which a rule's conditions cannot be met."""

from ddp_invariants.situations.asking import WAYS

SAMPLING: dict[str, frozenset[str]] = {
    "shuffle": frozenset({"shuffle"}),
    "in_order": frozenset({"no shuffle"}),
    "drop_last": frozenset({"drop_last"}),
    "given_rank": frozenset(),
    "set_epoch": frozenset(),
    "uneven": frozenset({"N not divisible by W", "padding", "N < W", "a short last batch"}),
    "short": frozenset({"N < W"}),
    "no_samples": frozenset(),
    "resume": frozenset(),
    "elastic": frozenset({"another world size"}),
    "workers": frozenset(),
    "large_seed": frozenset(),
    "negative_seed": frozenset(),
    "large_epoch": frozenset(),
    **{way.capability: frozenset[str]() for way in WAYS},
}
"""The conditions of rules about samplers that only a sampler with a capability can meet."""


_OF_TWO_RANKS = (
    "more than one rank",
    "ranks differed before wrapping",
    "a group without rank 0",
    "batches differed",
    "ranks shared a batch",
    "local gradients differed between ranks",
    "gradients ready in another order on one rank",
    "unused on some ranks",
    "a rank without batches",
    "batches changed buffers differently",
    "no broadcasts of buffers",
    "results withheld",
    "collectives delayed",
    "one bucket",
    "several buckets",
    "two buckets",
    "a rank died",
    "fewer ranks saved",
    "more ranks saved",
    "several ranks drew random numbers",
    "a slow communication stream",
    "a slow computation stream",
)


RANKS = {
    **dict.fromkeys(_OF_TWO_RANKS, 2),
    "three ranks": 3,
    "two ranks left at different steps": 3,
}
"""The conditions that take more ranks than one, and how many."""
