"""The rules, for a property of one's own: those that there are (`ALL`), and a way to add another (`own`).

A rule is a pure function of one case's evidence. It looks at a `Hearing` (of training; a `Deal`
where it is about samplers), counts what it compares into a `Tally`, and returns the first `Breach`.
Where a case lacks what it is about it raises `NotAbout`, where evidence is missing `Unjudged`: a
rule that compared nothing proves nothing.
"""

from ddp_invariants.invariants import ALL_RULES as ALL
from ddp_invariants.invariants import judge, own
from ddp_invariants.invariants.rule import NotAbout, Rule, Tally, Unjudged
from ddp_invariants.invariants.shard import Deal
from ddp_invariants.invariants.view import Hearing
from ddp_invariants.records.verdict import Breach

__all__ = [
    "ALL",
    "Breach",
    "Deal",
    "Hearing",
    "NotAbout",
    "Rule",
    "Tally",
    "Unjudged",
    "judge",
    "own",
]
