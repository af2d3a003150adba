"""The small cases that show the planted faults, one for each, in `tests/quality/caught.json`.

A test runs each case in the simulation and over gloo, and judges it by all rules. That takes a
fraction of a second, where a search takes ten. The command adds the cases of faults that have none,
and replaces those of the faults that are named:

    python tests/helpers/caught.py [NAME…]

A fault for which the command finds no case is searched for by the tests each time.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.result import Discovery
from ddp_invariants.discovery.scope import Scope, UnderTest
from ddp_invariants.errors import CaseError, HarnessError
from ddp_invariants.invariants import ALL_RULES, root_failure
from ddp_invariants.processes.hosts import Hosts
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof.catalogue import CatalogueEntry, all_entries
from ddp_invariants.proof.detection import Detection, Diagnosis
from ddp_invariants.records.verdict import Failure
from ddp_invariants.search import places, scale, strategies
from ddp_invariants.search.strategies import cases_for
from ddp_invariants.search.trial import Options, Trial
from ddp_invariants.situations.capability import BASE

CAUGHT = Path(__file__).parents[1] / "quality" / "caught.json"
DRAWN = 100
"""Cases that the command draws for a fault that no probe of a capability shows."""
ASKS = "SHARD-2"
"""The rule whose property asks samplers in other ways, and draws long datasets."""
SHRINK_RUNS = 60
UNDIAGNOSED = 3
"""Cases without the planted cause that the command passes over for one with it."""
DEADLINE = 1.5
"""Seconds a case may take; only a fault that loops or sleeps takes so long."""


@dataclass(frozen=True)
class Judged:
    """The judgement on one case of a planted fault.

    Attributes:
        rule: The rule that explains the failures of the case; empty if there are none.
        diagnosis: A comparison of the named cause with the planted one.
        unreal: The rules that failed in the simulation alone.
        failure: The failure by that rule; None if there is none.
    """

    rule: str
    diagnosis: Diagnosis
    unreal: str
    failure: Failure | None = None


def simulate_first(replaced: Callable[[object, str, object], None] = setattr) -> None:
    """Simulate every case that may be simulated."""
    replaced(places, "FIRST_REAL", 0)
    replaced(places, "REAL_EVERY", 1 << 32)


@cache
def recorded() -> dict[str, Case]:
    """Return the recorded cases, by the names of the faults."""
    adapter: TypeAdapter[Case] = TypeAdapter(TrainingCase | ShardCase)
    plain = json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}
    return {name: adapter.validate_json(json.dumps(case)) for name, case in plain.items()}


def record(cases: dict[str, Case]) -> None:
    """Write the cases by the names of the faults, a line each, without fields at their defaults."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(_without_defaults(json.loads(to_json(case))))}"
        for name, case in sorted(cases.items())
    ]
    CAUGHT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _without_defaults(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a case's JSON without what a case or a layer has by default."""
    kind = plain["kind"]
    if kind == "training":
        if plain["model"]["naming"] == "numbered":
            del plain["model"]["naming"]
        layers = plain["model"]["layers"]
        plain["model"]["layers"] = [
            {"kind": layer["kind"], **_unlike(layer, asdict(Layer(layer["kind"])))}
            for layer in layers
        ]
    default = TrainingCase(Model(1, (Layer("linear"),))) if kind == "training" else ShardCase()
    return {"kind": kind, **_unlike(plain, json.loads(to_json(default)))}


def _unlike(plain: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from the default."""
    return {
        name: _unlike(value, default[name]) if isinstance(value, dict) and name == "data" else value
        for name, value in plain.items()
        if value != default.get(name, ...)
    }


def trial_of(pool: Pool, planted: CatalogueEntry, store: Path) -> Trial:
    """Return a trial of a planted fault that knows its declarations, and probes nothing."""
    ddp, sampler = planted.under_test
    described = Discovery(pool.describe(ddp), pool.describe(sampler))
    scope = described.scope(4)
    lacking = {*described.ddp["lacks"], *scope.declared.unsupported, *scope.sampler.unsupported}
    if "BUF-1" not in planted.rules:
        lacking.add("equal_buffers")  # Nothing requires them unless they are claimed.
    declared = scope.declared
    if "COMM-4" in planted.rules and not declared.buckets:
        declared = replace(declared, buckets="within")  # The reference fills buckets so.
    scope = replace(scope, declared=declared, without=frozenset(lacking))
    return Trial(pool, UnderTest(ddp, sampler, scope), Options(store=store))


def judged(trial: Trial, planted: CatalogueEntry, case: Case) -> Judged:
    """Run a case, over gloo as well if it fails in the simulation, and judge it by all rules."""
    before = set(trial.ledger.unreal)
    findings = trial.findings(case, rule=planted.rule)
    failure = root_failure(trial.failures(findings, case))
    unreal = ", ".join(trial.ledger.unreal[name] for name in trial.ledger.unreal.keys() - before)
    if failure is None:
        return Judged("", "unknown", unreal)
    detection = Detection(
        planted,
        seed=0,
        cases=1,
        rule=failure.rule,
        cause="" if len({cause.words for cause in failure.causes}) > 1 else failure.perhaps,
        failure_words="" if failure.causes else f"{failure.fact}; {failure.got}",
    )
    return Judged(failure.rule, detection.diagnosis, unreal, failure)


def _candidates(trial: Trial, planted: CatalogueEntry) -> Iterator[Case]:
    """Yield cases that may show a fault: the probes of all capabilities, then drawn cases.

    The last ones are large.
    """
    if not planted.is_sampler:
        for probe in (BASE, *(capability.probe for capability in TRAINING.values())):
            yield trial.scope.fit(probe)
    rules = dict.fromkeys((planted.rule, ASKS) if planted.is_sampler else (planted.rule,))
    for rule in rules:
        yield from _drawn(rule, trial.scope)
    # Large cases are a few percent; here there are no others.
    axes = st.sampled_from(tuple(scale._GROWN))
    scales = tuple(filter(any, strategies._SCALES))
    with patch.object(scale, "AXES", axes), patch.object(strategies, "_SCALES", scales):
        large = _drawn(ASKS if planted.is_sampler else planted.rule, trial.scope)
    yield from large


def _drawn(rule: str, scope: Scope) -> list[Case]:
    """Draw cases as the property of a rule does."""
    drawn: list[Case] = []

    @seed(0)
    @settings(
        max_examples=DRAWN,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases_for(rule, scope))
    def draw(case: Case) -> None:
        drawn.append(case)

    draw()
    return drawn


class _Search:
    """A search for a small case that shows a fault.

    Args:
        pool: The ranks.
        planted: The fault.
        store: A folder for violations.
    """

    def __init__(self, pool: Pool, planted: CatalogueEntry, store: Path) -> None:
        self.planted = planted
        self.real = trial_of(pool, planted, store)
        self.simulated = Trial(pool, self.real.under_test, self.real.options)
        self.simulated.places.believe(ALL_RULES)  # The real trial confirms the smallest case alone.

    def shows(self, trial: Trial, case: Case, least: Diagnosis = "unknown") -> bool:
        """Return whether a case shows the fault by the right rule, with such a diagnosis."""
        try:
            result = judged(trial, self.planted, case)
        except (CaseError, HarnessError):
            return False
        return (
            result.rule in self.planted.rules
            and result.unreal == ""
            and result.diagnosis in ("right", least)
        )

    def find(self) -> Case | None:
        """Return a small case that shows the fault, best with the right diagnosis; None for none."""
        found: list[Case] = []
        for case in _candidates(self.simulated, self.planted):
            if not self.shows(self.simulated, case):
                continue
            least: Diagnosis = "right" if self.shows(self.simulated, case, "right") else "unknown"
            small = self.shrunk(case, least)
            confirmed = next(
                (timed for timed in (small, case) if self.shows(self.real, timed, least)), None
            )
            if confirmed is None:
                continue
            if least == "right" or not self.planted.causes or len(found) == UNDIAGNOSED:
                return confirmed
            found.append(confirmed)
        return found[0] if found else None

    def shrunk(self, case: Case, least: Diagnosis) -> Case:
        """Return the simplest case that still shows the fault in the simulation."""
        runs, improved = 0, True
        while improved:
            improved = False
            for candidate in simpler(case):
                runs += 1
                if runs > SHRINK_RUNS:
                    return case
                if self.shows(self.simulated, candidate, least):
                    case, improved = candidate, True
                    break
        return case


def main() -> None:
    """Record the cases of the faults that have none, or of those named on the command line.

    Cases of faults that no longer exist are forgotten.
    """
    simulate_first()
    faults = {planted.target for planted in all_entries() if planted.is_fault}
    cases = {target: case for target, case in recorded().items() if target in faults}
    record(cases)
    with Hosts() as hosts, Pool(hosts.addresses) as pool:
        pool.limit(DEADLINE)
        for planted in all_entries():
            wanted = planted.name in sys.argv[1:] or not (sys.argv[1:] or planted.target in cases)
            if not planted.is_fault or planted.needs_device or not wanted:
                continue
            with TemporaryDirectory() as store:
                case = _Search(pool, planted, Path(store)).find()
            sys.stdout.write(f"{planted.target}: {'none' if case is None else 'found'}\n")
            sys.stdout.flush()
            if case is not None:
                cases[planted.target] = case
                record(cases)


if __name__ == "__main__":
    main()
