"""The rules, as pure functions of evidence.

A rule sees one case's evidence and says: nothing wrong among so many comparisons, a
breach here, or that it lacks its evidence. Add a rule to the module of its invariant.
"""

import numpy as np

from ddp_invariants.declarations import Declarations, SamplerDeclarations
from ddp_invariants.evidence import ShardEvidence, TrainingEvidence
from ddp_invariants.invariants import buf, comm, grad, init, live, loss, mem, param
from ddp_invariants.invariants.hearing import UNDECLARED, Hearing, training
from ddp_invariants.invariants.rule import Rule
from ddp_invariants.invariants.shard import UNDECLARED as UNDECLARED_SAMPLER
from ddp_invariants.invariants.shard import Deal, sharding
from ddp_invariants.verdict import Finding

__all__ = ["ALL_RULES", "buf", "comm", "grad", "init", "judge", "live", "loss", "mem", "param"]

_ORDER = ("INIT", "SHARD", "LOSS", "GRAD", "PARAM", "BUF", "COMM", "LIVE", "MEM")
_RULES: dict[str, Rule[Hearing] | Rule[Deal]] = {**training.rules, **sharding.rules}
ALL_RULES = {identifier: _RULES[identifier] for identifier in sorted(
    _RULES, key=lambda rule: (_ORDER.index(rule.split("-")[0]), int(rule.split("-")[1])))}
"""Every rule by id, in the order of the specification."""


def judge(evidence: TrainingEvidence | ShardEvidence, declared: Declarations = UNDECLARED,
          sampler: SamplerDeclarations = UNDECLARED_SAMPLER) -> dict[str, Finding]:
    """Judge one case by every rule about its kind of evidence, as far as what is declared says what to expect."""
    if isinstance(evidence, ShardEvidence):
        deal = Deal(evidence, sampler)
        return {identifier: rule.find(deal) for identifier, rule in sharding.rules.items()}
    hearing = Hearing(evidence, declared)
    # A run may diverge: what overflows is told from what does not by its value, not by a warning.
    with np.errstate(all="ignore"):
        return {identifier: rule.find(hearing) for identifier, rule in training.rules.items()}
