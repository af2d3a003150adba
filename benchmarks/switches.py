"""The capabilities of torch's DDP under its own switches, as `docs/torch.md`.

`python benchmarks/switches.py` probes every training capability under each switch by one small
case. The document says if torch is right, refuses, or is wrong.
"""

from collections.abc import Iterator
from pathlib import Path

import click
from pages import templates

from ddp_invariants.cases.case import describe
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Discovery, Standing
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool

DOCS = Path(__file__).parent.parent / "docs"
SHARDED = {"init": "seed", "gradients": "hidden", "zero": 3, "partition": "rows"}
SWITCHES: dict[str, Ddp] = {
    "as it is": Ddp("torch"),
    "`find_unused_parameters`": Ddp("torch", (("find_unused_parameters", "True"),)),
    "`static_graph`": Ddp("torch", (("static_graph", "True"),)),
    "`gradient_as_bucket_view`": Ddp("torch", (("gradient_as_bucket_view", "True"),)),
    "`broadcast_buffers=False`": Ddp("torch", (("broadcast_buffers", "False"),)),
    "float16 hook": Ddp("examples/torch_switches.py:in_float16"),
    "PowerSGD hook": Ddp("examples/torch_switches.py:power_sgd"),
    "`replicate`": Ddp("torch.distributed._composable.replicate:replicate"),
    "with `ZeroRedundancyOptimizer`": Ddp(
        "torch", optimizer="torch.distributed.optim:ZeroRedundancyOptimizer"
    ),
    "`fully_shard` (FSDP2)": Ddp("torch.distributed.fsdp:fully_shard", declares=SHARDED),
}
MARKS = {
    Standing.RIGHT: "✓",
    Standing.REFUSED: "refused",
    Standing.WRONG: "**wrong**",
    Standing.CRASHED: "**crashes**",
    Standing.ABSENT: "·",
    Standing.UNKNOWN: "?",
}


def discoveries(pool: Pool) -> Iterator[tuple[str, Ddp, Discovery]]:
    """Yield the result of discovery under each switch."""
    for name, ddp in SWITCHES.items():
        click.echo(name, err=True)
        yield name, ddp, discover(pool, ddp, Sampler(), 4)


@click.command()
def main() -> None:
    """Write the document."""
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        rows = list(discoveries(pool))
    capabilities = [
        name
        for name in CAPABILITIES
        if any(probed.capability == name for probed in rows[0][2].ddp_probes)
    ]
    marks = [
        (
            name,
            [
                MARKS[probed.standing]
                for _, _, seen in rows
                for probed in seen.ddp_probes
                if probed.capability == name
            ],
        )
        for name in capabilities
    ]
    wrong = [
        (
            name,
            ddp.options(),
            [
                (
                    probed.capability,
                    probed.words,
                    probed.expected,
                    describe(TRAINING[probed.capability].probe),
                )
                for probed in seen.ddp_probes
                if probed.standing is Standing.WRONG
            ],
        )
        for name, ddp, seen in rows
    ]
    environment = templates()
    text = environment.get_template("switches.md.j2").render(
        torch=rows[0][2].torch,
        switches=list(SWITCHES),
        meanings=CAPABILITIES,
        rows=[row for row in marks if set(row[1]) != {"✓"}],
        right=[name for name, row in marks if set(row) == {"✓"}],
        wrong=[switch for switch in wrong if switch[2]],
    )
    (DOCS / "torch.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
