"""Counts of a run's cases by each dimension, so that a certificate shows what it covers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.cases.formats import ITEM_SIZE
from ddp_invariants.invariants.buckets import filled
from ddp_invariants.situations import SITUATIONS

EXACT = 32
"""Numbers up to this limit are counted exactly, larger ones as the next power of two."""


def rounded(number: int) -> int:
    """Return a small number itself, and for a large number the next power of two."""
    return number if number <= EXACT else 1 << (number - 1).bit_length()


@dataclass
class Drawn:
    """Counts of cases.

    Attributes:
        sizes: By kind, world size and dataset length, as "training 3 17".
        dimensions: By dimension and value. A case with two layers of one kind counts once.
    """

    sizes: Counter[str] = field(default_factory=Counter)
    dimensions: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, case: Case) -> None:
        """Count a case."""
        self.sizes[f"{case.kind} {case.world_size} {rounded(case.data.samples)}"] += 1
        for dimension, values in (
            _training(case) if isinstance(case, TrainingCase) else _dealing(case)
        ).items():
            counts = self.dimensions.setdefault(dimension, Counter())
            for value in {values} if isinstance(values, str) else values:
                counts[value] += 1

    def merge(self, drawn: Self) -> None:
        """Add another worker's counts."""
        self.sizes.update(drawn.sizes)
        for dimension, counts in drawn.dimensions.items():
            self.dimensions.setdefault(dimension, Counter()).update(counts)

    def to_plain(self) -> dict[str, Any]:
        """Return the counts as JSON-ready data."""
        return {
            "sizes": dict(self.sizes),
            "dimensions": {name: dict(counts) for name, counts in self.dimensions.items()},
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Read counts from the data of `to_plain`."""
        return cls(
            Counter(plain["sizes"]),
            {name: Counter(counts) for name, counts in plain["dimensions"].items()},
        )


def _training(case: TrainingCase) -> dict[str, str | set[str]]:
    layers = case.model.layers
    cap = "its default" if case.bucket_cap is None else f"{rounded(case.bucket_cap)} bytes"
    counted: dict[str, str | set[str]] = {
        "bucket cap": cap,
        "buckets": _buckets(case),
        "dtypes": {layer.dtype for layer in layers},
        "layers": {layer.kind for layer in layers},
        "layout": {layer.layout for layer in layers},
        "names": case.model.naming,
        "optimizer": case.optimizer.kind,
        "steps": str(case.steps),
        "accumulation": str(case.accumulation),
        "batch": str(rounded(case.data.batch_size)),
        "parameters": str(rounded(sum(len(layer.parameters) for layer in layers))),
        "largest tensor": f"{rounded(_largest(case))} elements",
        "gradients": case.zero_grad,
        "values": case.values,
        "starts": case.init,
        "process group": _group(case),
    }
    for situation in SITUATIONS:
        counted |= situation.counted(case)
    return counted


def _group(case: TrainingCase) -> str:
    """Return the ranks of the default group that train, in a few words."""
    if not case.outside:
        return "all ranks"
    return "without rank 0, with gaps" if case.has_gaps else "without rank 0"


def _largest(case: TrainingCase) -> int:
    """Return the number of elements of the case's largest parameter."""
    return max(
        size
        for layer, width in zip(case.model.layers, case.model.widths(), strict=False)
        for size in layer.sizes(width) or [0]
    )


def _buckets(case: TrainingCase) -> str:
    """Return the number of buckets that the case's bucket cap makes of the trained parameters.

    They are filled from the last parameter on, as most implementations do.
    """
    if case.bucket_cap is None:
        return "as its default makes"
    trained = [
        size * ITEM_SIZE[layer.dtype]
        for layer, width in zip(case.model.layers, case.model.widths(), strict=False)
        if not layer.frozen
        for size in layer.sizes(width)
    ]
    return str(rounded(filled(trained[::-1], case.bucket_cap)))


def _dealing(case: Case) -> dict[str, str | set[str]]:
    data = case.data
    return {
        "sampler": {
            name
            for name, is_so in (("shuffle", data.shuffle), ("drop_last", data.drop_last))
            if is_so
        }
        or "plain",
        "asked": {situation.kind for situation in getattr(case, "situations", ())} or "plainly",
    }
