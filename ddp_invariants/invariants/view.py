"""The evidence view of one training case: its recorded evidence and its expected values."""

from functools import cached_property

from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants.expected import ExpectedValues
from ddp_invariants.invariants.recorded import RecordedTraining
from ddp_invariants.invariants.rule import RuleSet
from ddp_invariants.records.evidence import TrainingEvidence

UNDECLARED = Declarations()
training = RuleSet["EvidenceView"]()
"""All rules about training."""


class EvidenceView(RecordedTraining):
    """The evidence of a training case, as the rules read it."""

    def __init__(self, evidence: TrainingEvidence, declared: Declarations = UNDECLARED) -> None:
        super().__init__(evidence, declared)

    @cached_property
    def expected(self) -> ExpectedValues:
        """The values that the ranks must hold."""
        return ExpectedValues(self)
