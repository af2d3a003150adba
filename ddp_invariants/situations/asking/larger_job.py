"""A rank and a world size that are not those of the whole job.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddp_invariants.cases.shard_situation import ShardSituation


@dataclass(frozen=True)
class LargerJob(ShardSituation):
    """A sampler that gets a rank and a world size, in a job with twice as many processes.

    Each model is divided between two processes. The second one has neither the rank nor the world
    size that its default group and its launcher's variables name.
    """

    fact: ClassVar[str] = (
        "the same rank and world size give other indices in a process of a larger job"
    )
    capability: ClassVar[str] = "larger_job"
    means: ClassVar[str] = "a rank and a world size that are not those of the whole job"

    kind: Literal["larger job"] = "larger job"
