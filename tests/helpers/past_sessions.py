"""Handmade sessions of a history."""

from dataclasses import replace

from ddp_invariants.records.history import PastSession

SESSION = PastSession(
    "2026-01-02T03:04:05+00:00",
    61.5,
    "pytest properties/",
    "somebody.ddp:Wrapper",
    "reference",
    ("somebody 1.0", "ddp_invariants 0.1.0"),
    "0.1.0",
    "2.13.0+cpu",
    7,
    1495,
    "certified",
    {"core": "certified", "extended": "certified", "robust": "certified"},
    {"GRAD-1": "holds", "GRAD-2": "holds"},
    {},
)


def with_rules(**verdicts: str) -> PastSession:
    """Return a session with verdicts of rules."""
    return replace(SESSION, rules={rule.replace("_", "-"): each for rule, each in verdicts.items()})


VIOLATED = replace(
    with_rules(GRAD_1="holds", GRAD_2="violated"),
    outcome="violated",
    levels={**SESSION.levels, "core": "violated"},
    violations={"GRAD-2": "525cc8"},
)
