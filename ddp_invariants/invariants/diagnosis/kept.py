"""What a buffer that differs between ranks equals instead, and which others it does not happen to."""

import numpy as np

from ddp_invariants.evidence import Tensors
from ddp_invariants.invariants.diagnosis.causes import caused
from ddp_invariants.invariants.hearing import Hearing
from ddp_invariants.verdict import Breach, Cause


def of_buffer(hearing: Hearing, breach: Breach, step: int, rank: int, name: str) -> Breach:
    """A breach about a buffer at a step's start, with what may have caused it."""
    own, synchronised = set[str](), set[str]()
    for number in hearing.steps("forward buffers")[1:]:
        left, started = hearing.every_rank("left buffers", number - 1), hearing.every_rank("forward buffers", number)
        for one in left[0].by_name:
            if any(not _same(tensors, left[0], one) for tensors in left[1:]):
                kept = all(_same(tensors, before, one) for tensors, before in zip(started, left, strict=True))
                own |= {one} if kept else set()
                equal = all(_same(tensors, started[0], one) for tensors in started[1:])
                synchronised |= {one} if equal else set()
    if name not in own:
        return breach
    return caused(breach, [Cause("not synchronised", f"it is what rank {rank} itself left after step {step - 1}: not "
                                 "synchronised in forward", _only(hearing, own - synchronised, synchronised))])


def _same(one: Tensors, other: Tensors, name: str) -> bool:
    return name in one.by_name and name in other.by_name and np.array_equal(one.by_name[name], other.by_name[name],
                                                                            equal_nan=True)


def _only(hearing: Hearing, own: set[str], synchronised: set[str]) -> str:
    """What the buffers that are not synchronised have in common that no other has; empty where there is nothing."""
    dtypes = {row[0]: row[1] for row in hearing.evidence.ranks[0].structure_before if row[5] == "buffer"}
    if not own or not synchronised:
        return ""
    if all(name.endswith(".running") for name in own) and not any(name.endswith(".running") for name in synchronised):
        return "only those that forward assigns anew: a list of buffers is older than they are"
    floats = {name for name in own | synchronised if dtypes.get(name, "").startswith(("float", "bfloat"))}
    return "only those that are not floating-point" if floats == synchronised else ""
