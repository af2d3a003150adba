"""Tests of composed faults, of their witness, and of the judge on them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_invariants.cli import main
from ddp_invariants.faults.generated import triggers, wrapper
from ddp_invariants.faults.generated.choices import (
    COLLECTIVES,
    LAYOUTS,
    OPERATORS,
    SAMPLER_TRIGGERS,
    TRIGGERS,
    Composition,
    hosts,
)
from ddp_invariants.faults.generated.collectives import SUMMED
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof import generated
from ddp_invariants.proof.generated import CASES, population, right, witnessed, wrong
from ddp_invariants.proof.measure import FaultSearch, search
from ddp_invariants.report import populations

HALVES = Composition("ddp", ("capped", "ready", "all_reduce"), "halve", "fifth reduction")
KEEPS_ITS_START = Composition("ddp", ("each", "end", "gathered"), "own start", "strided")
AMONG_FIVE = Composition("ddp", ("whole", "end", "gathered"), "sum", "five ranks")
SEEDS = Composition("ddp", ("each", "end", "all_reduce"), "seed", "strided")
DISTURBED = Composition("ddp", ("each", "end", "ring"), "fewer", "second wrapper")
SKIPS = Composition("sampler", ("blocks", "python"), "skip", "third epoch")


def test_every_choice_is_made_somewhere() -> None:
    """The names of the choices are those of the parts that a wrapper is composed of."""
    assert [*triggers.ACTS] == [*TRIGGERS]
    assert [*triggers.SAMPLER_ACTS] == [*SAMPLER_TRIGGERS]
    assert {*wrapper._CAPS} == {*LAYOUTS}
    assert {*SUMMED} == {*COLLECTIVES}
    of_seam = {
        seam: {name for name, operator in OPERATORS.items() if operator.seam == seam}
        for seam in ("start", "buffers", "send", "wait", "receive")
    }
    assert set().union(*of_seam.values()) == {*OPERATORS}
    assert {*wrapper._SENT} == of_seam["send"]
    assert {*wrapper._DIVISORS, "keep", "late", "half"} == of_seam["receive"]


def test_a_seed_decides_the_order_of_all_possible_faults() -> None:
    """Each composition comes once, and another seed gives another order."""
    first, again, other = (list(wrong(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other)
    assert len({*first}) == len(first) > 15000
    assert sum(each.part == "sampler" for each in first[:200]) == 50


def test_the_witness_shows_faults_and_no_right_wrapper() -> None:
    """It names rank, parameter, gradient and mean; one that ends its world stops no other."""
    raising = Composition("ddp", ("each", "ready", "no such collective"))
    right = [*hosts("ddp")[::13], *hosts("sampler")]
    shown = witnessed([raising, SKIPS, *right, HALVES, KEEPS_ITS_START])
    assert [*shown] == [raising, SKIPS, HALVES, KEEPS_ITS_START]
    assert "raised KeyError: 'no such collective'" in shown[raising]
    assert "the gradient is" in shown[HALVES]
    assert "epoch 3: 1 samples are on no rank" in shown[SKIPS]
    assert shown[KEEPS_ITS_START].startswith("at the start: rank ")


def test_composed_faults_are_caught_and_the_right_wrappers_hold(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rules search for each composition that is shown wrong; its host serves as a control."""
    wrongs = [HALVES, SKIPS, KEEPS_ITS_START, AMONG_FIVE, SEEDS, DISTURBED]
    monkeypatch.setattr(generated, "wrong", lambda _seed: iter(wrongs))
    faults = population(6, 0)
    assert [fault.name for fault in faults] == [each.name for each in wrongs]
    names = ("capped, ready, scattered", "strided, torch", "blocks, python")
    controls = [entry for entry in right() if entry.name in names]
    found = [search(pool, FaultSearch(fault, 0, CASES), tmp_path) for fault in faults]
    found += [search(pool, FaultSearch(control, 0, 20), tmp_path) for control in controls]
    assert [(each.is_caught, each.is_right_rule) for each in found] == [
        *[(True, True)] * 6,
        *[(False, False)] * 3,
    ]
    text = populations.table(found)
    assert (
        "6 searches for planted faults: 6 (100.0 %) caught, 6 (100.0 %) by the right rule" in text
    )
    assert "a  own start" in text
    assert "60 cases of controls: 0 false violations" in text


def test_composed_faults_and_a_catalogue_exclude_each_other() -> None:
    """The options name two populations."""
    done = CliRunner().invoke(main, ["faults", "--generated", "1", "--catalogue", "."])
    assert done.exit_code == 64
    assert "--generated and --catalogue exclude each other" in done.output
