"""The rules, for a property of one's own: those that there are (`ALL`), and a way to add another (`own`).

A rule is a pure function of one case's evidence. It looks at a `EvidenceView` (of training; a `ShardView`
where it is about samplers), counts what it compares into a `Tally`, and returns the first `Failure`.
Where a case lacks what it is about it raises `NotAbout`, where evidence is missing `Unjudged`: a
rule that compared nothing proves nothing.
"""

from ddp_invariants.invariants import ALL_RULES as ALL
from ddp_invariants.invariants import judge, own
from ddp_invariants.invariants.rule import NotAbout, Rule, Tally, Unjudged
from ddp_invariants.invariants.shard import ShardView
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.verdict import Failure

__all__ = [
    "ALL",
    "EvidenceView",
    "Failure",
    "NotAbout",
    "Rule",
    "ShardView",
    "Tally",
    "Unjudged",
    "judge",
    "own",
]
