"""Another default dtype in the process.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class DefaultDtype(ShardSituation):
    """A process in which `torch.set_default_dtype` was called.

    A program does so before it builds a model in float64. The order of an epoch stays the same.
    """

    fact: ClassVar[str] = "the order depends on the default dtype of the process"
    capability: ClassVar[str] = "default_dtype"
    means: ClassVar[str] = "another default dtype"

    kind: Literal["default dtype"] = "default dtype"
