"""MEM: the memory that sharding promises to save; a rank holds at most its share of each kind."""

import math

from ddp_invariants.cases.formats import ITEM_SIZE
from ddp_invariants.invariants.exclusions import Exclusion
from ddp_invariants.invariants.rule import OBSERVED_ONLY, Tally, Unjudged, not_about
from ddp_invariants.invariants.view import EvidenceView, training
from ddp_invariants.records.evidence import Slot
from ddp_invariants.records.verdict import Failure
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.group_options import GroupOptions
from ddp_invariants.situations.module_use import ModuleUse

_MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
"""Tensors of a parameter's size that an optimizer keeps; torch's SGD keeps one only with momentum."""

_ALIGNMENT = 16
"""Bytes to which torch's FSDP1 aligns each parameter in a flat tensor (_get_aligned_numel)."""

# Note: whole parameters
# ~~~~~~~~~~~~~~~~~~~~~~
# An optimizer that deals whole parameters to ranks may give the next one to the rank that has least
# so far. A rank then gets at most an even share and one parameter more; bytes may be counted, or
# elements, as torch's ZeroRedundancyOptimizer does. Or parameter n goes to rank n modulo W. A rank
# then gets ceil(P / W) of the P parameters, perhaps the largest. All parameters that the program
# hands over are dealt, those without a gradient as well, although these have no state.


@training.rule(
    "MEM-1",
    "Each rank's parameter, gradient and optimizer-state bytes are at most the claimed share, plus the "
    "stated padding.",
    needs=("more than one rank", "optimizer with state"),
    source="Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054: the stages' shares",
    applies="declared",
    excluded=(
        Exclusion("shards nothing", lambda claims: not claims.declared.zero),
        Exclusion(
            "shards nothing but the state of an update of its own, whose size is not known",
            lambda claims: claims.declared.zero == 1 and claims.declared.update == "own",
        ),
    ),
    after="LIVE-4",
    script=OBSERVED_ONLY,
)
def at_most_the_claimed_share(view: EvidenceView, tally: Tally) -> Failure | None:
    """Count storages, each once, at the end of each step; gradients when they must be ready.

    Stage 1 shards optimizer state (and the copies of parameters that an optimizer updates), stage 2
    gradients too, stage 3 parameters too.
    """
    stage, case = view.declared.zero, view.case
    not_about({"no stage of sharding is declared": not stage, "one rank": case.world_size == 1})
    ranks = view.evidence.ranks
    if not all(rank.held for rank in ranks):
        raise Unjudged(view.cut_short or "a rank recorded no bytes")
    layout = view.layout(0)
    trained = layout.nbytes
    moments = (
        0
        if case.optimizer.kind == "sgd" and not case.optimizer.momentum
        else _MOMENTS[case.optimizer.kind] + case.optimizer.amsgrad
    )
    # For parameters below float32 the promise counts a float32 copy; state and gradients match it.
    wide = sum(slot.elements * _size(slot) for slot in layout.slots)
    if view.declared.partition == "flat":
        wide += sum(size * count for size, count in _frozen(view))
    holders = view.declared.holders(case.world_size)
    padding = _padding(view, holders)
    share = wide / holders + padding
    _require_all_seen([rank.held[-1] for rank in ranks], stage, trained, moments)
    # An SGD of the implementation's own may keep a momentum of zero too.
    most = max(moments, 1) if view.declared.optimizer == "own" else moments
    low = [slot for slot in layout.slots if _size(slot) > _own_size(slot)]
    # An optimizer with wide copies of low parameters holds its share of both.
    has_copies = bool(view.declared.main and low)
    copies = sum(slot.elements * _size(slot) for slot in low) / holders + padding
    originals = sum(slot.elements * _own_size(slot) for slot in low) / holders + padding
    # If the share is not smaller than the whole, a rank that holds everything passes as well.
    if share < wide:
        tally.meet({"more than one rank": True, "optimizer with state": moments})
    for number, rank in enumerate(ranks):
        for step, (module, own, state, gradients) in enumerate(rank.held):
            claims = [("an optimizer's own copies of parameters", own, share)]
            # The state may hold the copies that the optimizer updates.
            states = (
                ("optimizer state and copies", state + own, most * share + copies + originals)
                if has_copies
                else ("optimizer state", state, most * share)
            )
            # An update that is not known may need any number of tensors for each parameter.
            claims += [] if view.declared.update == "own" else [states]
            # Gradients that the program clears in place keep their storage, beside a new one for
            # those that it sets to None.
            mixed = case.zero_grad == "mixed"
            claims += [("gradients", gradients, share)] if stage > 1 and not mixed else []
            if stage > 2:
                both = share + originals if has_copies else share
                claims += [("parameters", module, share), ("parameters", module + own, both)]
            for kind, held, allowed in claims:
                tally.compared += 1
                if held > allowed:
                    return Failure(
                        "MEM-1",
                        f"a rank holds more {kind} than its share",
                        f"rank {number} of {len(ranks)}, step {step}",
                        f"{held} bytes, expected at most {allowed:.0f}: {wide} bytes of trained "
                        f"parameters over {holders} ranks, and {padding:.0f} of padding",
                    )
    return None


def _require_all_seen(held_W: list[list[int]], stage: int, trained: int, moments: int) -> None:
    """Raise unless all sharded bytes were seen: all shards together must make the whole.

    Raises:
        Unjudged: They do not, so the implementation keeps tensors that the recorder cannot see.
    """
    module, own, state, gradients = (sum(held[kind] for held in held_W) for kind in range(4))
    wanted = [("optimizer state", state, moments * trained)]
    wanted += [("gradients", gradients, trained)] if stage > 1 else []
    wanted += [("parameters", module + own, trained)] if stage > 2 else []
    for label, seen, whole in wanted:
        if seen < whole:
            raise Unjudged(
                f"{seen} bytes of {label} were seen on all ranks together, expected {whole}: the "
                "optimizer shows no `state` or `param_groups`"
            )


def _padding(view: EvidenceView, holders: int) -> float:
    """Return the bytes by which a share may exceed an even share.

    These are an element or a row per parameter. In a flat tensor each parameter may be aligned. Whole
    parameters may be dealt in any usual way ([Note: whole parameters]).

    Args:
        view: The evidence.
        holders: The number of shards.
    """
    slots = [(slot, _size(slot)) for slot in view.layout(0).slots if slot.elements]
    if view.declared.partition == "flat":
        return _ALIGNMENT * (len(slots) + len(_frozen(view)))
    if view.declared.partition == "elements":
        return sum(size for _, size in slots)
    if view.declared.partition == "rows":
        return sum(
            size * slot.elements // (slot.shape[0] if slot.shape else 1) for slot, size in slots
        )
    trained = [(size, slot.elements) for slot, size in slots]
    if not trained:
        return 0
    return _largest_share(trained, _frozen(view), holders, _groups(view)) - (
        sum(size * count for size, count in trained) / holders
    )


def _largest_share(
    trained: list[tuple[int, int]], frozen: list[tuple[int, int]], holders: int, groups: int
) -> float:
    """Return the most bytes of trained parameters that one rank may get ([Note: whole parameters]).

    Args:
        trained: The bytes of an element and the number of elements of each trained parameter; at
            least one.
        frozen: The same of parameters that require no gradient.
        holders: The number of ranks to which they are dealt.
        groups: The number of groups of parameters. Each may be dealt by itself, beginning with the
            same rank.
    """
    every = trained + frozen
    sizes = [size * count for size, count in every]
    counts = [count for _, count in every]
    turns = math.ceil(len(every) / holders) + groups - 1
    return max(
        sum(sizes) / holders + groups * max(sizes),
        (sum(counts) / holders + groups * max(counts)) * max(size for size, _ in trained),
        sum(sorted(size * count for size, count in trained)[-turns:]),
    )


def _groups(view: EvidenceView) -> int:
    """Return the number of groups of parameters."""
    use = view.case.get(ModuleUse)
    has_two = view.case.get(GroupOptions) is not None or (use is not None and "groups" in use.uses)
    actions = view.case.get(Actions)
    added = actions.actions if actions is not None and actions.adds else ()
    return 1 + has_two + sum(action.kind == "unfreeze" for action in added)


def _frozen(view: EvidenceView) -> list[tuple[int, int]]:
    """Return an element's bytes and the number of elements of each frozen parameter.

    Flat tensors may hold them beside trained ones, and an optimizer may deal them to ranks, too.
    """
    return [
        (max(4, ITEM_SIZE[row.dtype]), math.prod(row.shape))
        for row in view.evidence.ranks[0].structure_before
        if row.kind == "parameter" and not row.requires_grad and row.name == row.first_name
    ]


def _size(slot: Slot) -> int:
    """Return the bytes of an element as an optimizer keeps it: float32 at least."""
    return max(4, _own_size(slot))


def _own_size(slot: Slot) -> int:
    """Return the bytes of an element of a parameter."""
    return ITEM_SIZE[slot.dtype or "float32"]
