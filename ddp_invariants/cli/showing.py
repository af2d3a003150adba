"""Both outcomes, for somebody who is new: demo."""

import click

from ddp_invariants.status import UNUSABLE_INPUT, unusable

_RULES = ("SHARD-3", "GRAD-2", "PARAM-1")
_FAULTY = "ddp_invariants.faults.bucketed:NeverDivides"


@click.command(short_help="See a right and a wrong implementation judged, in seconds.")
@click.pass_context
def demo(context: click.Context) -> None:
    """Judge the reference, which is right, and a wrapper that sums gradients and never divides, by a few rules.

    Exit status 0 where the first is certified and the second is not, as it must be.
    """
    # Imported here: it imports Hypothesis, which the other commands do without.
    from ddp_invariants import report
    from ddp_invariants.ranks.hosts import Hosts
    from ddp_invariants.sessions.certification import Implementation, certify
    from ddp_invariants.verdict import Violation

    click.echo("Each case is a whole training run on real processes, which talk over gloo: how many ranks, which model, which\n"
               "batches, is drawn. What the ranks saw is judged by rules (`ddp-invariants rules`).\n\n"
               f"1. The reference, by {', '.join(_RULES)}:\n")
    try:
        with Hosts() as hosts:
            ledger = certify(Implementation(), _RULES, examples=15, hosts=hosts)
            click.echo(report.summary(ledger, list(_RULES)))
            click.echo("\nIt is certified: every rule holds in each of these cases, in which it met what it is about.\n\n"
                       f"2. The same wrapper, but it never divides by the number of ranks ({_FAULTY}):\n")
            try:
                certify(Implementation(ddp=_FAULTY), "GRAD-2", examples=15, hosts=hosts)
            except Violation as violation:
                click.echo(violation.report)
            else:
                click.echo("ddp-invariants: nothing was found, and should have been", err=True)
                context.exit(1)
    except UNUSABLE_INPUT as error:
        click.echo(f"ddp-invariants: {error}", err=True)
        context.exit(unusable(error))
    click.echo("\nAll ranks agree, and the gradient is wrong. Of the cases that show it this is the smallest; what its line\n"
               "`repeat` says runs it again. The rule is explained by `ddp-invariants rules GRAD-2`.\n\n"
               "Your own: ddp-invariants certify my_package.ddp:MyDDP, or ddp-invariants init for a start.")
