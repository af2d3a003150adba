"""Arguments that the program leaves out.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class LeftOut(ShardSituation):
    """A sampler made without its optional arguments.

    It must be the sampler that gets the same arguments with the defaults of the signature.
    """

    fact: ClassVar[str] = "arguments that are left out are not the defaults of the signature"
    capability: ClassVar[str] = "left_out"
    means: ClassVar[str] = "optional arguments that are left out"

    kind: Literal["left out"] = "left out"
