"""A dataset that consists of several.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class Concatenated(ShardSituation):
    """A `torch.utils.data.ConcatDataset`, in which one dataset occurs twice, as if oversampled.

    A sampler may shuffle each member by itself, so no order is expected: the shards of all ranks
    must cover the dataset, without overlap beyond the padding.
    """

    fact: ClassVar[str] = (
        "for a dataset that is concatenated of several, the ranks' indices do not fit together"
    )
    capability: ClassVar[str] = "concatenated"
    means: ClassVar[str] = "a dataset that is a ConcatDataset of others"

    kind: Literal["concatenated"] = "concatenated"

    def expected(self, case: Any) -> tuple[int, ...]:
        """Return no epoch."""
        del case
        return ()
