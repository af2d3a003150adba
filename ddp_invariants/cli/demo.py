"""The command demo: both outcomes, for a new user."""

import click

from ddp_invariants.cli.output import for_people, print_json, with_json
from ddp_invariants.cli.statuses import exit_statuses
from ddp_invariants.errors import UNUSABLE_INPUT, VIOLATED, unusable

_RULES = ("SHARD-3", "GRAD-2", "PARAM-1")
_FAULTY = "ddp_invariants.faults.bucketed:NeverDivides"
_CASES, _WORLD_SIZE = 15, 3
_FIRST = (
    "Each case is a whole training run. Its number of ranks, its model and its batches are drawn. Most "
    "cases run\n"
    "in a simulation, the others on real processes over gloo. Rules judge what the ranks recorded\n"
    "(`ddp-invariants rules`).\n\n"
    f"1. The reference, by {', '.join(_RULES)}:\n"
)
_SECOND = (
    "\nIt is certified: every rule holds in each of these cases, and met the conditions "
    "that it needs.\n\n"
    f"2. A wrapper that never divides by the number of ranks ({_FAULTY}):\n"
)
_LAST = (
    "\nAll ranks agree, but the gradient is wrong. This is the smallest case that shows it. The "
    "command after\n"
    "`repeat` runs it again. `ddp-invariants rules GRAD-2` explains the rule.\n\n"
    "Test your own with `ddp-invariants certify my_package.ddp:MyDDP`. `ddp-invariants init` "
    "writes an adapter\nto start from."
)


@click.command(
    short_help="Judge one right and one wrong wrapper, in seconds.",
    epilog=exit_statuses(
        "the right wrapper is certified, and the wrong one violates a rule, as expected",
        "otherwise",
        "inconclusive: the suite itself failed",
    ),
)
@with_json
@click.pass_context
def demo(context: click.Context, /, *, as_json: bool) -> None:
    """Judge the reference, which is correct, and a wrapper that sums gradients but never divides.

    The command uses only a few rules, and shows both kinds of result.
    """
    from ddp_invariants.processes.hosts import HASH_SEEDS, Hosts

    print_text = for_people(as_json=as_json)
    print_text(_FIRST)
    try:
        with Hosts(
            hash_seeds=HASH_SEEDS[:1]
            # One host: a second hash seed would expose dependence on set order, and nothing here
            # depends on it.
        ) as hosts:
            # Imported here, while the host imports torch: Hypothesis, which the other commands do
            # not need.
            from ddp_invariants.certification import Implementation, certify
            from ddp_invariants.records.verdict import Violation
            from ddp_invariants.report import machine, terminal

            ledger = certify(
                Implementation(), _RULES, examples=_CASES, max_world_size=_WORLD_SIZE, hosts=hosts
            )
            print_text(terminal.summary(ledger, list(_RULES)))
            print_text(_SECOND)
            caught = None
            try:
                certify(
                    Implementation(ddp=_FAULTY),
                    "GRAD-2",
                    examples=_CASES,
                    max_world_size=_WORLD_SIZE,
                    hosts=hosts,
                )
            except Violation as violation:
                caught = violation
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    if as_json:
        print_json(machine.demonstration(ledger, _RULES, _FAULTY, caught))
    if caught is None:
        click.echo(
            "ddp-invariants: no violation was found, although this wrapper is wrong", err=True
        )
        context.exit(VIOLATED)
    print_text(caught.report)
    print_text(_LAST)
