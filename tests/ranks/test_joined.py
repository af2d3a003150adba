"""Tests of joined probes: what they contain, and that they never hide what is wrong."""

import pytest

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery import probe
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.joined import MOST, groups, joined
from ddp_invariants.discovery.result import Standing
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.call_shape import CallShape

FAULTS = "ddp_invariants.faults."


def test_a_joined_case_contains_every_capability_of_its_group() -> None:
    """Each capability is in one group at most, and happens in the group's case."""
    names = [name for group in groups() for name in group]
    assert len(names) == len(set(names)) > len(TRAINING) // 2
    for group in groups():
        assert 1 < len(group) <= MOST
        case = joined(group)
        assert case is not None
        assert all(TRAINING[name].present(case) for name in group)
        shape = case.get(CallShape)
        forms = [] if shape is None else [shape.inputs, shape.outputs]
        assert all(len(each) <= case.steps * case.accumulation for each in forms)


def test_capabilities_that_exclude_each_other_have_no_joined_case() -> None:
    """Two optimizers, and two environments, are no one case."""
    assert joined(("adam", "nesterov")) is None
    assert joined(("no_environment", "outer_environment")) is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("reference", {}),
        ("torch", {"assign": Standing.WRONG, "unfreeze": Standing.WRONG}),
        (f"{FAULTS}bucketed:SkipsScalars", {"scalar": Standing.WRONG}),
        (f"{FAULTS}bucketed:DividesByMicroSteps", {"accumulation": Standing.WRONG}),
        (f"{FAULTS}several:FlatOfTheDefaultDtype", {"low_default_dtype": Standing.WRONG}),
    ],
)
def test_a_joined_case_saves_runs_and_hides_nothing(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str, wrong: dict[str, Standing]
) -> None:
    """The standings are those of probes that run alone, after far fewer runs."""
    runs: list[TrainingCase] = []
    simulate = pool.simulate

    def counted(case: TrainingCase, ddp: Ddp) -> TrainingEvidence | None:
        runs.append(case)
        return simulate(case, ddp)

    monkeypatch.setattr(pool, "simulate", counted)
    together = probe.discover(pool, Ddp(name), Sampler(), 4, sides={"ddp"})
    joint = len(runs)
    monkeypatch.setattr(probe, "groups", lambda: ())
    alone = probe.discover(pool, Ddp(name), Sampler(), 4, sides={"ddp"})
    assert together.ddp_probes == alone.ddp_probes
    standings = {each.capability: each.standing for each in together.ddp_probes}
    assert standings.items() >= wrong.items()
    assert joint < (len(runs) - joint) * (2 + 2 * bool(wrong)) // 4
