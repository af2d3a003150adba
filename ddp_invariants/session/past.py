"""The line that a session adds to the history of its folder."""

from ddp_invariants import __version__
from ddp_invariants.records import history
from ddp_invariants.records.history import PastSession
from ddp_invariants.report.card import LevelAccount
from ddp_invariants.session.outputs import violations_of
from ddp_invariants.session.state import SessionState

_WORST_FIRST = ("violated", "inconclusive", "partial", "certified")


def record(state: SessionState) -> str:
    """Add a session to the history, unless it replayed a case or judged none.

    Returns:
        Why it could not be added; empty if it was.
    """
    monitor = state.monitor
    if monitor is None or state.config.option.replay or not state.ledger.cases:
        return ""
    settings, ledger, discovery = monitor.settings, state.ledger, state.discovery
    ddp, sampler = discovery.ddp, discovery.sampler
    session = PastSession(
        monitor.began,
        monitor.seconds,
        settings.command,
        ddp["name"],
        sampler["name"],
        (ddp["version"], sampler["version"]),
        __version__,
        discovery.torch,
        settings.seed,
        ledger.cases,
        "interrupted" if monitor.interrupted else _outcome(state.card),
        {level.level: level.verdict for level in state.card},
        {rule: ledger.verdict_of(rule) for rule in ledger.entries if ledger.concerned(rule)},
        {stored.failure.rule: stored.id for stored in violations_of(ledger).values()},
    )
    try:
        history.append(session)
    except OSError as error:
        return f"history: {history.FILE} could not be written: {error.strerror}"
    return ""


def _outcome(levels: tuple[LevelAccount, ...]) -> str:
    verdicts = {level.verdict for level in levels}
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), "not claimed")
