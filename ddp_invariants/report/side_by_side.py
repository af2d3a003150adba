"""The text that compares several implementations after they were judged one after another."""

from collections.abc import Mapping

from ddp_invariants.discovery.result import Standing
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.report.outcome import SessionResult
from ddp_invariants.report.terminal import table_lines


def text(results: Mapping[str, SessionResult]) -> str:
    """Compare implementations: verdicts by rule, differing capabilities, and sessions' outcomes."""
    # Imported here: it is needed once, at the end.
    from rich.box import SIMPLE
    from rich.table import Table

    def table(title: str) -> Table:
        made = Table(box=SIMPLE, show_edge=False, pad_edge=False)
        made.add_column(title, no_wrap=True)
        for name in results:
            made.add_column(name, overflow="fold")
        return made

    verdicts, capabilities = table("rule"), table("capability")
    for rule in ALL_RULES:
        cells = [
            result.ledger.verdict_of(rule)
            if result.ledger and result.ledger.concerned(rule)
            else ""
            for result in results.values()
        ]
        if any(cells):
            verdicts.add_row(rule, *cells)
    for capability in CAPABILITIES:
        standings = [_standing(result, capability) for result in results.values()]
        if len({*standings} - {"", Standing.UNKNOWN.value}) > 1:
            capabilities.add_row(capability, *standings)
    verdicts.add_section()
    verdicts.add_row("outcome", *(result.outcome for result in results.values()))
    lines = ["", "side by side", *table_lines(verdicts), ""]
    lines += (
        table_lines(capabilities)
        if capabilities.row_count
        else ["capabilities: no difference was found"]
    )
    unknown = {
        name: sum(probed.standing is Standing.UNKNOWN for probed in result.capabilities)
        for name, result in results.items()
    }
    return "\n".join(
        [
            *lines,
            *(
                f"{name}: {count} capabilities were not probed"
                for name, count in unknown.items()
                if count
            ),
        ]
    )


def _standing(result: SessionResult, capability: str) -> str:
    """Return the standing of a capability; empty if it was not probed."""
    return next(
        (
            probed.standing.value
            for probed in result.capabilities
            if probed.capability == capability
        ),
        "",
    )
