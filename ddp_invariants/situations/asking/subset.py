"""A dataset that is a part of another one.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Subset(ShardSituation):
    """A `torch.utils.data.Subset`, whose samples are the last ones of a dataset twice as long.

    The indices are those into the subset, as for any other dataset of its length.
    """

    fact: ClassVar[str] = "a subset of a dataset gives other indices than a dataset of its length"
    capability: ClassVar[str] = "subset"
    means: ClassVar[str] = "a dataset that is a Subset of another one"

    kind: Literal["subset"] = "subset"
