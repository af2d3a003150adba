"""The rules, for properties that users write: all rules (`ALL`), and a way to add another (`own`).

A rule is a pure function of one case's evidence. It looks at the evidence view (`EvidenceView`; for
samplers the shard view `ShardView`), counts its comparisons into a `Tally`, and returns the first
failure (`Failure`). It raises `NotAbout` if a case lacks the subject of the rule, and `Unjudged`
if evidence is missing: a rule that compared nothing proves nothing.
"""

from ddp_invariants.invariants import ALL_RULES as ALL
from ddp_invariants.invariants import judge, own
from ddp_invariants.invariants.rule import NotAbout, Rule, Tally, Unjudged
from ddp_invariants.invariants.sampler_view import ShardView
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
