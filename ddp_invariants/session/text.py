"""The lines that a session prints: its header, and the summary at its end."""

from typing import Any

from ddp_invariants import __version__
from ddp_invariants.cases.levels import LEVELS
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.processes import job
from ddp_invariants.report import pages, proposal, terminal
from ddp_invariants.report.card import notes
from ddp_invariants.search import messages
from ddp_invariants.session.options import cases_per_property
from ddp_invariants.session.state import SessionState


class WithLinks(str):
    """The text of a test's failure, in which rules are links where the terminal has links.

    pytest asks for `toterminal` when it writes a failure, and for the plain text otherwise.
    """

    __slots__ = ()

    def toterminal(self, writer: Any) -> None:
        """Write the text with pytest's own writer, which also writes to strings, without markup."""
        writer.line(linked(str(self), terminal=True) if writer.hasmarkup else str(self))


def linked(line: str, *, terminal: bool) -> str:
    """Return a text with links to the pages of its rules, where the terminal has links."""
    return pages.with_links(line) if pages.opens_links(terminal=terminal) else line


def header(state: SessionState) -> list[str]:
    """Return the header: the implementation under test, and the session's settings."""
    option, shared = state.config.option, state.shared
    reason = shared["not_run"]
    lines = [] if reason else terminal.under_test(state.discovery, verbose=option.verbose > 0)
    cases = cases_per_property(option)
    extent = (
        f"replay {option.replay}"
        if option.replay
        else f"profile {option.profile}, {cases} cases per property"
        + (f", of which shard {option.shard} draws its part" if option.shard else "")
    )
    lines.append(
        f"ddp-invariants {__version__}, torch {shared['torch']}, backend {state.backend}, "
        f"seed {shared['seed']}, {extent}, "
        f"world sizes to {option.max_world_size}, isolation {option.isolation}"
    )
    if reason:
        lines.append(f"not run: {reason}")
    if job.led() is not None:
        lines.append(str(job.led()))
    if state.journal is not None and state.journal.known:
        lines.append(
            f"restarted: {state.journal.known:,} cases were judged before the restart and are not "
            "run again"
        )
    return lines


def summary(state: SessionState) -> list[str]:
    """Return the verdicts, the capabilities and the passing failures; empty if nothing was run."""
    not_run = state.shared["not_run"]
    if not state.ledger.cases and not not_run:
        return []
    # Under xdist the main process imports no property, and does not know the user's own rules.
    order = list(dict.fromkeys([*ALL_RULES, *sorted(state.ledger.entries)]))
    if not_run:
        return [terminal.summary(state.ledger, order)]
    replayed, verbose = bool(state.config.option.replay), state.config.option.verbose > 0
    levels = () if replayed else state.card
    violated = any(entry.confirmed for entry in state.ledger.entries.values())
    paragraphs = [
        terminal.report_card(levels),
        "" if replayed else _decided(state),
        terminal.left_out_of(state.discovery),
        terminal.faulty(state.discovery, levels, state.stored_probes),
        terminal.summary(
            state.ledger, order, notes(levels, state.ledger), verbose=verbose or replayed
        ),
        # A reader of violations has enough to read.
        terminal.right(state.discovery, levels) if verbose or not violated else "",
        terminal.passing_failures(state.passing_failures, violated=violated),
    ]
    return [paragraph for paragraph in paragraphs if paragraph]


def last(state: SessionState) -> str:
    """Return the last lines of a report: the proposed declarations."""
    judged = state.ledger.cases and not state.shared["not_run"] and not state.config.option.replay
    if not judged:
        return ""
    return proposal.text(proposal.proposals(state.card, state.discovery), state.discovery)


def _decided(state: SessionState) -> str:
    """Return a line about the levels that decide the exit status; empty if all of them do."""
    most = state.config.option.level
    counting = LEVELS[: LEVELS.index(most) + 1]
    if counting == LEVELS:
        return ""
    return messages.labelled("exit", f"the status is decided by {' and '.join(counting)} alone")
