"""The bytes that each ZeRO stage saves and sends, measured against the claims.

`python benchmarks/sharding.py`. Bytes are those of storages, and each storage is counted once.
Storages are measured on the rank that holds most, at the end of a step (gradients: when they are
ready). `sent` is the least that the observed collectives of a step must send, in units of the
parameters' bytes.
"""

from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import TrainingEvidence

WIDTH = 64
MAIN = (("main_dtype", "torch.float32"),)
"""An fp32 copy of bfloat16 parameters: mixed precision as the paper counts it, 2 + 2 + 12 bytes."""


@dataclass(frozen=True)
class Scheme:
    """One way to hold a model: name, implementation, ZeRO stage, and claim of bytes sent."""

    name: str
    ddp: Ddp
    stage: int
    sent: str


SCHEMES = (
    Scheme("data parallel", Ddp(declares={"zero": 1}), 0, "2"),
    Scheme("ZeRO-1", Ddp("none", optimizer="examples/zero.py:Zero1"), 1, "2"),
    Scheme("ZeRO-2", Ddp("examples/zero.py:zero2"), 2, "2"),
    Scheme("ZeRO-3", Ddp("examples/zero.py:Zero3"), 3, "3"),
)


def case(world_size: int, *, mixed: bool) -> TrainingCase:
    """Return a case with three square layers and AdamW, in bfloat16 if `mixed`."""
    layers = tuple(
        Layer("linear", WIDTH, dtype="bfloat16" if mixed else "float32") for _ in range(3)
    )
    return TrainingCase(
        Model(WIDTH, layers),
        world_size=world_size,
        data=Data(samples=64, batch_size=4),
        steps=2,
        optimizer=Optimizer("adamw"),
    )


def mixed(scheme: Scheme) -> Scheme:
    """Return the scheme with an fp32 copy of the parameters that it updates."""
    given: dict[str, Any] = (
        {"optimizer_arguments": MAIN} if scheme.ddp.optimizer else {"arguments": MAIN}
    )
    return replace(scheme, ddp=replace(scheme.ddp, **given))


def measured(evidence: TrainingEvidence, elements: int) -> list[float]:
    """Return the measured bytes per parameter element, and the bytes sent over Psi.

    The bytes held are those of parameters, gradients and optimizer (copies included), and their
    sum. Psi is the number of the parameters' bytes.
    """
    module, own, state, gradients = (
        max(rank.held[-1][kind] for rank in evidence.ranks) / elements for kind in range(4)
    )
    parameters = module or own
    optimizer = state + (own if module else 0)
    observed = judge(evidence)["COMM-6"].observed
    w = evidence.case.world_size
    return [
        parameters,
        gradients,
        optimizer,
        parameters + gradients + optimizer,
        max(observed) * 2 * (w - 1) / w,
    ]


def claimed(stage: int, world_size: int, *, low: bool) -> list[float]:
    """Return the bytes held as Rajbhandari et al. 2020 (arXiv:1910.02054, table 1) claim them.

    The bytes per element are 2 + 2 + 12 in mixed precision (`low`), or 4 + 4 + 8 in float32.
    """
    parameters, gradients, optimizer = (2.0, 2.0, 12.0) if low else (4.0, 4.0, 8.0)
    parts = [
        parameters / (world_size if stage > 2 else 1),
        gradients / (world_size if stage > 1 else 1),
        optimizer / (world_size if stage else 1),
    ]
    return [*parts, sum(parts)]


def main() -> None:
    """Measure all schemes and print the tables."""
    console = Console(width=118)
    elements = 3 * WIDTH * WIDTH
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        for low in (False, True):
            kind = "bfloat16 with an fp32 copy" if low else "float32"
            table = Table(title=f"bytes per parameter, {kind}, AdamW: measured (claimed)")
            for column in (
                "scheme",
                "W",
                "parameters",
                "gradients",
                "optimizer",
                "all",
                "saving",
                "sent / Psi",
            ):
                table.add_column(column, justify="left" if column == "scheme" else "right")
            for world_size in (2, 4):
                whole = sum(claimed(0, world_size, low=low)[:3])
                for scheme in SCHEMES:
                    if low and scheme.stage not in (1, 2):
                        continue  # The other schemes keep no fp32 copy.
                    evidence = pool.train(
                        case(world_size, mixed=low), (mixed(scheme) if low else scheme).ddp
                    )
                    *held, sent = measured(evidence, elements)
                    cells = [
                        f"{got:.2f} ({claim:.2f})"
                        for got, claim in zip(
                            held, claimed(scheme.stage, world_size, low=low), strict=True
                        )
                    ]
                    ring = (world_size - 1) / world_size
                    table.add_row(
                        scheme.name,
                        str(world_size),
                        *cells,
                        f"{whole / held[3]:.2f}x",
                        f"{sent:.2f} ({scheme.sent} x {ring:.2f})",
                    )
            console.print(table)


if __name__ == "__main__":
    main()
