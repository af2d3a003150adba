"""The capabilities that a DDP lacks by its signature, its declarations, or the way it is driven."""

from collections.abc import Mapping
from typing import Any

from ddp_invariants.implementation.declarations import Declarations


def lacking_as_declared(described: Mapping[str, Any], declared: Declarations) -> frozenset[str]:
    """Return the capabilities that a DDP lacks by its signature or its declarations."""
    lacking = frozenset(described["lacks"]) | frozenset(
        {"accumulation"} if declared.accumulation == "none" else ()
    )
    if declared.gradients == "hidden":
        # A parameter that no rank uses may get a zero for its gradient, which may move it. Hidden
        # gradients do not show that.
        lacking |= {"unused_by_all"}
        # Only the oracle could check such a step, and it computes no second derivatives.
        lacking |= {"penalty"}
    if declared.gradients == "hidden" and declared.zero:
        # So may a frozen parameter that shares a flat tensor with others.
        lacking |= {"freeze", "unfreeze", "unfreeze_in_group"}
    if declared.zero == 3:
        # The module's parameters exist within a forward only, which all ranks must run alike.
        lacking |= {"parameter_outputs", "unused", "weight_penalty", "loss_only"}
        lacking |= {"weights_written", "pruned"}
    if declared.main:
        # The optimizer goes on with its own copies.
        lacking |= {"weights_written"}
    if declared.reduction == "sum":
        # A gradient left from the last sum may be summed again or not, depending on the hooks. No
        # declaration says which is meant.
        lacking |= {"never_zeroed", "retained"}
    if declared.gradients == "owner":
        # Likewise the mean that only its owner has left.
        lacking |= {"never_zeroed"}
    return lacking


def lacking_as_driven(how: Mapping[str, str], declared: Declarations) -> frozenset[str]:
    """Return the capabilities that a DDP lacks by the way in which it is driven.

    Args:
        how: The calls with which it is driven, by moment.
        declared: Its declarations.
    """
    lacking: frozenset[str] = frozenset()
    if how.get("accumulation") == "each":
        lacking |= {"no_sync_nested", "no_sync_error", "no_sync_interrupt"}
        if declared.reduction == "sum" or (
            "before each batch" in how and not declared.accumulation
        ):
            # The name does not say whether this hook runs before each step or before each
            # micro-step. So accumulation is not tested.
            lacking |= {"accumulation"}
    if how.get("without communication", "no_sync") != "no_sync":
        lacking |= {"no_sync_nested"}  # A switch cannot be nested.
    if "backward" in how:  # An engine's own backward is not told that another one follows.
        lacking |= {"retained", "scaler", "input_gradients"}
    if {"gradients", "step"} & how.keys():
        # They lie elsewhere, or an engine changes them as it likes.
        lacking |= {"clipping", "scaler"}
    if {"before each batch", "step"} & how.keys():
        # Either may clear the gradients that the program has left.
        lacking |= {"never_zeroed"}
    if "uneven batches" not in how:
        lacking |= {"join"}
    return lacking
