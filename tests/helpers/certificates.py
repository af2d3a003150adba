"""Handmade certificates: no session was run, and their ledgers are consistent."""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from handmade import CASE, altered, right

from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Perturbation
from ddp_invariants.discovery.result import Discovery, Probed, Standing
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.diagnosis.excerpts import example, of_violation
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.records.verdict import Failure
from ddp_invariants.records.violation import StoredViolation, identifier
from ddp_invariants.report.certificate.certificate import Certificate
from ddp_invariants.report.certificate.from_session import SessionRun, SessionSettings, make
from ddp_invariants.search.ledger import Entry, Ledger
from ddp_invariants.situations.perturbation import Perturbed

LONG = (
    "a_package_of_somebody_who_likes_names.with_modules_nested_deeply.parallel:"
    + "DistributedDataParallelWrapper" * 6
)
SMALLEST = TrainingCase(Model(1, (Layer("linear"),)))
DEALT = ShardEvidence(
    ShardCase(3, Data(samples=8, shuffle=True), epochs=(0, 4)),
    ({"shards": [[[4, 1, 0], [7, 2, 5], [3, 6, 4]], [[1, 3, 5], [0, 2, 4], [6, 7, 1]]]},),
)
"""Eight samples over three ranks: one rank is padded in each epoch."""
WITHHELD = right(CASE.with_situation(Perturbed(Perturbation("withheld"))))


def described(name: str = "somebody.ddp:Wrapper") -> dict[str, Any]:
    """Return a rank's description of an implementation."""
    return {
        "name": name,
        "target": name,
        "version": "somebody 1.0",
        "declares": {},
        "driven": ["wrapped with the module"],
        "torch": "2.13.0",
        "made_of": {
            "digest": "a5" * 32,
            "files": 2,
            "first": ["somebody/buckets.py", "somebody/ddp.py"],
        },
    }


def discovery(
    name: str = "somebody.ddp:Wrapper",
    probed: tuple[Probed, ...] = (Probed("bias", Standing.RIGHT),),
) -> Discovery:
    """Return the result of discovery for such an implementation."""
    return Discovery(
        described(name),
        described("somebody.data:Sampler"),
        probed,
        (Probed("shuffle", Standing.RIGHT),),
    )


def ledger(cases: int = 40) -> Ledger:
    """Return the ledger of a session in which every rule holds."""
    made = Ledger()
    for number in range(cases):
        made.drawn.add(CASE if number % 2 else DEALT.case)
    made.cases = cases
    made.ran.update(simulated=cases - 4, gloo=4)
    for rule, known in ALL_RULES.items():
        errors = (
            [cases - 9, 4, 0, 3, 0, 0, 0, 0, 0, 1, 1, 0]
            if rule.startswith(("GRAD", "PARAM"))
            else [cases, *[0] * 11]
        )
        met = Counter(dict.fromkeys(known.needs, 7))
        made.entries[rule] = Entry(
            cases,
            30 * cases,
            met,
            0.97 if errors[1] else 0.0,
            errors,
            ordinary=9,
            ordinary_met=met.copy(),
            milliseconds=1000 + 37 * len(made.entries),
        )
    made.entries["COMM-6"].observed = [0.5, 2.25]
    for rule in ("MEM-1", "INIT-4"):
        made.entries[rule] = Entry(not_claimed="shards nothing")
    made.tested, made.ended = set(ALL_RULES) - {"MEM-1", "INIT-4"}, set(ALL_RULES)
    for evidence in (DEALT, WITHHELD):
        shown = example(evidence)
        assert shown is not None
        made.examples[evidence.case.kind] = asdict(shown)
    return made


def run(**changes: Any) -> SessionRun:
    """Return a session's settings and duration, with the changes given."""
    usual = SessionRun(
        SessionSettings("pytest -n 2 properties/", 1, 40, 4, "pooled", "gloo"),
        "2026-01-02T03:04:05+00:00",
        12.5,
        frozenset(ALL_RULES),
    )
    return replace(usual, **changes)


def certified(name: str = "somebody.ddp:Wrapper") -> Certificate:
    """Return a certificate in which every rule holds."""
    return make(ledger(), discovery(name), run(), {})


def violated(
    name: str = "somebody.ddp:Wrapper",
    fact: str = "the gradient is not the mean of the ranks' local gradients",
) -> Certificate:
    """Return a certificate in which one rule, GRAD-2, is violated."""
    entries, failure = (
        ledger(),
        Failure(
            "GRAD-2", fact, "rank 0 of 2, step 0", "-48 at (0, 0), expected -24", "never divided"
        ),
    )
    entry = entries.entries["GRAD-2"]
    entry.errors, entry.seen, entry.confirmed, entry.worst = [*entry.errors[:-2], 0, 1], 1, 1, 2.5e6
    entry.seen_at, entry.blamed = Counter(core=1), [("core", ())]
    entry.failures = {"525cc8": f"{fact}; rank 0 of 2, step 0"}
    repeat = "pytest properties/ --replay FILE -k grad2"
    stored = StoredViolation(SMALLEST, failure, Ddp(name), Sampler(), (3, 3), "2.13.0", repeat)
    path = Path(".ddp-invariants") / f"{identifier(SMALLEST, 'GRAD-2', name)}.json"
    wrong = altered(WITHHELD, 1, "reduced", 1, "layers.0.bias", lambda values: values * 2)
    entries.stored[str(path)] = asdict(of_violation(wrong, "GRAD-2"))
    return make(entries, discovery(name), run(), {str(path): stored})
