"""The sampler view: the recorded answers of a sampler, as the rules about samplers read them.

Words: N dataset length, W world size; total = W * ceil(N / W), or W * floor(N / W) with drop_last.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ddp_invariants.cases.shard_case import ENOUGH, fewest_orders, may_repeat
from ddp_invariants.implementation.declarations import SamplerDeclarations
from ddp_invariants.invariants.crashes import is_crash, read
from ddp_invariants.invariants.dealing import Fit, fit_of_batches, repeats_for, total_of
from ddp_invariants.invariants.diagnosis import shards as shards_of
from ddp_invariants.invariants.rule import NotAbout, RuleSet, Unjudged
from ddp_invariants.records.evidence import FOREIGN, OWN, ShardEvidence

UNDECLARED = SamplerDeclarations()
sharding = RuleSet["ShardView"]()
"""All rules about samplers."""


class ShardView:
    """The recorded answers of a sampler, as the rules read them."""

    def __init__(self, evidence: ShardEvidence, declared: SamplerDeclarations = UNDECLARED) -> None:
        self.evidence, self.case, self.declared = evidence, evidence.case, declared

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The first process's answer.

        Raises:
            Unjudged: The sampler raised or the process ended.
        """
        if self.evidence.incident is not None:
            raise Unjudged(f"the process {self.evidence.incident.kind}")
        raised = self.evidence.answers[0].get("raised")
        if raised is not None and self.case.data.samples == 0 and raised["phase"] == "construction":
            raise NotAbout("the sampler refuses an empty dataset, which is allowed")
        if raised is not None:
            verb = "crashed with" if is_crash(read(raised)) else "raised"
            raise Unjudged(
                f"the sampler {verb} {raised['type']} in {raised['phase']}: {raised['message']}"
            )
        return self.evidence.answers[0]

    @property
    def epochs(self) -> list[tuple[int, list[list[int]]]]:
        """Each epoch with every rank's indices.

        Raises:
            Unjudged: A rank holds data that are no sample of the first rank's data.
        """
        held = self.held
        if self.declared.layout == "scatter" and any(
            index in (OWN, FOREIGN) for _, ranks in held for shard in ranks for index in shard
        ):
            raise Unjudged("a rank holds data that the first rank did not send (SHARD-8)")
        return held

    @property
    def held(self) -> list[tuple[int, list[list[int]]]]:
        """Each epoch with everything that every rank holds.

        These are indices, and `OWN` and `FOREIGN` if data are scattered.
        """
        return list(zip(self.case.epochs, self.answer["shards"], strict=True))

    def fit(self, shards: Sequence[Sequence[int]]) -> Fit:
        """Return how an epoch's shards become equal: as declared, or as those of batches do."""
        padding = self.declared.padding
        batches = bool(self.answer.get("in_batches"))
        return fit_of_batches(self.case, padding, shards) if batches else padding

    @cached_property
    def padding(self) -> Fit:
        """How the last epoch's shards become equal."""
        return self.fit(self.answer["shards"][-1])

    @property
    def total(self) -> int:
        """The number of indices of all ranks together."""
        return total_of(self.case, self.padding)

    @property
    def repeats(self) -> int:
        """The number of indices that may be repetitions."""
        return repeats_for(self.case.data.samples, self.case, self.padding)

    def is_equal_order(self, count: int | None, shards: list[list[int]]) -> bool:
        """Return whether equal orders of two epochs or seeds are no chance.

        Args:
            count: The equal pairs in a row; None if data are scattered, and nobody counted.
            shards: The shards that both gave.
        """
        if may_repeat(self.case.data.samples, shards):
            return False
        fewest = fewest_orders(self.case)
        return fewest >= 2**ENOUGH if count is None else fewest > 1 and count >= ENOUGH

    def equal_epochs(self, epoch: int, other: int) -> int | None:
        """Return how many pairs of epochs in a row share an order, from two equal epochs on.

        The result is None if nobody counted.
        """
        if self.answer.get("equal_epochs") is None:
            return None
        return next((count for (count,) in self._of_pair("equal_epochs", epoch, other)), 1)

    def interval_of(self, epoch: int, other: int) -> int | None:
        """Return the interval at which two epochs share an order again and again; None for none."""
        return next((by for (by,) in self._of_pair("epoch_intervals", epoch, other)), None)

    def are_lone(self, epoch: int, other: int) -> bool:
        """Return whether two epochs share an order under every seed, and no other epochs do."""
        return bool(self._of_pair("lone_epochs", epoch, other))

    def _of_pair(self, name: str, epoch: int, other: int) -> list[list[int]]:
        """Return what the rows of an answer say of two epochs, whose places they begin with."""
        epochs = self.case.epochs
        return [
            rest
            for first, second, *rest in self.answer.get(name, ())
            if (epochs[first], epochs[second]) == (epoch, other)
        ]

    @property
    def yielded(self) -> shards_of.YieldedShards:
        """The shards, as the diagnosis of causes needs them."""
        return shards_of.YieldedShards(self.case, self.epochs, self.total)

    def where(self, epoch: int) -> str:
        """Return an epoch and the sizes of the case in words."""
        data = self.case.data
        return f"{data.samples} samples over {self.case.world_size} ranks, epoch {epoch}"


def brief(shards: Sequence[object]) -> str:
    """Return shards, or the ranks' numbers, as text of at most 201 characters."""
    text = str(shards)
    return text if len(text) < 200 else text[:200] + "…"
