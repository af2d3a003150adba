"""Causes of a gradient that only some ranks have, although other ranks do not use the parameter."""

import numpy as np

from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.verdict import Cause


def causes(
    view: EvidenceView, step: int, name: str, without: list[int], users: list[int]
) -> list[Cause]:
    """Return the causes that explain which ranks have a gradient, and its values; empty if unknown.

    Args:
        view: The evidence view of the case.
        step: The step.
        name: The parameter's name.
        without: Ranks without a gradient.
        users: Ranks that use the parameter.
    """
    reduced = view.every_rank("reduced", step)
    left = [view.every_rank("reduced", step - 1)] if step and view.case.zero_grad == "never" else []
    if (
        len(without) == len(reduced)
        or not users
        or any(name in tensors.by_name for record in left for tensors in record)
    ):
        return []
    local_KW = np.stack(
        [
            [tensors.by_name[name] for tensors in view.every_rank("local", number)]
            for number in view.micro_steps(step)
        ]
    )
    own_W = local_KW.sum(0)
    holders = [rank for rank in range(len(reduced)) if rank not in without]
    held = np.stack([reduced[rank].by_name[name] for rank in holders])
    if held[0].shape != own_W[0].shape:
        return []
    slack = view.form(view.layout(step)).roundoff
    slack = float(np.max(slack, initial=0.0)) * (len(reduced) + 2) * np.abs(local_KW).sum((0, 1))
    factor = len(reduced) if view.declared.reduction == "sum" else 1
    values = [
        np.broadcast_to(own_W.mean(0) * factor, held.shape),
        own_W[holders],
        np.broadcast_to(own_W[users].mean(0) * factor, held.shape),
    ]
    fitting = [
        cause
        for cause, value in zip(_explanations(without[0], len(users)), values, strict=True)
        if (np.abs(held - value) <= slack).all()
    ]
    # One rank's own gradient is the mean over it alone.
    return fitting[:1] if len(users) == 1 and len(fitting) == 2 else fitting


def _explanations(rank: int, users: int) -> list[Cause]:
    """Return the known causes; `rank` has no gradient, and `users` ranks use the parameter."""
    return [
        Cause(
            "not written back",
            "the other ranks hold the mean: it is not written back on ranks without a gradient of "
            f"their own, such as rank {rank}",
        ),
        Cause(
            "never reduced",
            "the other ranks hold their own local gradients: never reduced if a rank has no "
            f"gradient of its own, such as rank {rank}",
        ),
        Cause(
            "divided by users",
            f"the other ranks hold the mean over the {users} that use it: ranks without a gradient "
            "take no part",
        ),
    ]
