"""Tests of composed faults, of their witness, and of the judge on them."""

import random
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_invariants.cli import main
from ddp_invariants.faults.generated import triggers, witness, wrapper
from ddp_invariants.faults.generated.choices import (
    COLLECTIVES,
    LAYOUTS,
    OPERATORS,
    PARTS,
    SAMPLER_TRIGGERS,
    STARTS,
    TRIGGERS,
    WRAPPERS,
    Composition,
    balanced,
    faulty,
    hosts,
)
from ddp_invariants.faults.generated.collectives import SUMMED
from ddp_invariants.faults.generated.placing import STARTED
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof import generated
from ddp_invariants.proof.generated import CASES, CONTROLS, population, right, witnessed, wrong
from ddp_invariants.proof.measure import FaultSearch, search
from ddp_invariants.report import populations

ROOT = Path(__file__).parents[2]
HALVES = Composition(
    "called",
    (
        *("capped", "ready", "all_reduce", "after", "backward", "backwards"),
        *("gathered", "flattened", "viewed"),
    ),
    "halve",
    "fifth reduction",
)
KEEPS_ITS_START = Composition(
    "ddp",
    (
        *("each", "end", "gathered", "before", "backward", "forwards"),
        *("together", "kept", "copied"),
    ),
    "own start",
    "strided",
)
AMONG_FIVE = Composition(
    "main",
    ("whole", "end", "trios", "before", "registered", "forwards", "summed", "flattened"),
    "sum",
    "five ranks",
)
OLD = Composition(
    "sharded",
    ("sorted", "ready", "all_reduce", "multiplied", "apart", "kept", "replaced"),
    "old",
    "bias",
)
DISTURBED = Composition(
    "ddp",
    (
        *("each", "end", "ring", "after", "backward", "forwards"),
        *("apart", "kept", "replaced"),
    ),
    "fewer",
    "second wrapper",
)
SKIPS = Composition("sampler", ("mirrored", "python", "end"), "skip", "third epoch")


def test_every_choice_is_made_somewhere() -> None:
    """The names of the choices are those of the parts that a wrapper is composed of."""
    assert [*triggers.ACTS] == [*TRIGGERS]
    assert [*triggers.SAMPLER_ACTS] == [*SAMPLER_TRIGGERS]
    assert {*wrapper._CAPS} == {*LAYOUTS}
    assert {*SUMMED} == {*COLLECTIVES}
    assert {*STARTED, "together"} == {*STARTS}
    assert {*witness._KINDS} == {*WRAPPERS}
    of_seam = {
        seam: {name for name, operator in OPERATORS.items() if operator.seam == seam}
        for seam in ("start", "buffers", "send", "wait", "receive", "update")
    }
    assert set().union(*of_seam.values()) == {*OPERATORS}
    assert {*wrapper._SENT} == of_seam["send"]
    assert {*wrapper._DIVISORS, "keep", "late", "half"} == of_seam["receive"]


def test_a_seed_decides_the_order_of_all_possible_faults() -> None:
    """Each composition comes once, and another seed gives another order."""
    first, again, other = ([*islice(wrong(seed), 2000)] for seed in (1, 1, 2))
    assert first == again != other
    assert len({*first}) == len(first)
    assert sum(each.part == "sampler" for each in first[:200]) == 50
    assert {each.part for each in first} == {*PARTS}
    assert {each.part for each in first if each.operator == "old"} == {"sharded"}
    samplers = [[*faulty(("sampler",), random.Random(seed))] for seed in (1, 2)]
    assert samplers[0] != samplers[1]
    assert sorted(samplers[0]) == sorted(samplers[1])
    assert len({*samplers[0]}) == len(samplers[0]) == 20 * 13 * 18


def test_the_page_counts_the_right_wrappers_and_samplers() -> None:
    """`docs/proof.md` says how many hosts there are, and how many of them are controls."""
    page = " ".join((ROOT / "docs" / "proof.md").read_text(encoding="utf-8").split())
    wrappers = sum(len(hosts(part)) for part in WRAPPERS)
    assert f"one of {wrappers:,} right wrappers or {len(hosts('sampler'))} right samplers" in page
    assert f"right wrappers and samplers, {CONTROLS} of each kind" in page


def test_controls_make_every_choice_twice() -> None:
    """A sample of right compositions has all names of a choice equally often, but for repetitions."""
    for part in WRAPPERS:
        sample = [each.arguments for each in right(3) if each.file == PARTS[part].target]
        for choice, names in PARTS[part].host.items():
            made = [dict(arguments)[choice] for arguments in sample]
            assert min(made.count(name) for name in names) >= 2


def test_right_implementations_are_composed_until_all_are_made() -> None:
    """As many are made as are asked for, each once; a few of them stand for what all can do."""
    thousand, every = right(1, 1000), right(1, 10**6)
    assert len({(entry.file, entry.arguments) for entry in thousand}) == len(thousand) == 1000
    assert len(every) == sum(len(hosts(part)) for part in PARTS)
    assert {entry.probed[0] for entry in every} <= {entry.under_test[0] for entry in every}
    assert len({entry.probed[0] for entry in every}) == 23  # One is the reference, of samplers.
    (fault,) = [generated._entry(HALVES)]
    assert dict(fault.probed[0].arguments) | {"collective": "all_reduce"} == {
        **dict(HALVES.kin.host_arguments)
    }


def test_the_witness_shows_faults_and_no_right_wrapper() -> None:
    """It names rank, parameter, gradient and mean; one that ends its world stops no other."""
    raising = Composition("ddp", ("each", "ready", "no such collective", *HALVES.host[3:]))
    right = [each for part in PARTS for each in balanced(part, 4, random.Random(0))]
    wrongs = [HALVES, AMONG_FIVE, KEEPS_ITS_START, OLD]
    shown = witnessed([raising, SKIPS, *right, *wrongs])
    assert [*shown] == [raising, SKIPS, *wrongs]
    assert "raised KeyError: 'no such collective'" in shown[raising]
    assert "the gradient is" in shown[HALVES]
    assert "the gradient is" in shown[AMONG_FIVE]
    assert "epoch 3: 1 samples are on no rank" in shown[SKIPS]
    assert "after the step the parameter is" in shown[OLD]
    assert shown[KEEPS_ITS_START].startswith("at the start: rank ")


def test_composed_faults_are_caught_and_the_right_wrappers_hold(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rules search for each composition that is shown wrong; its host serves as a control."""
    wrongs = [HALVES, SKIPS, KEEPS_ITS_START, AMONG_FIVE, OLD, DISTURBED]
    monkeypatch.setattr(generated, "wrong", lambda _seed: iter(wrongs))
    faults = population(6, 0)
    assert [fault.name for fault in faults] == [each.name for each in wrongs]
    names = {entry.style: entry.name for entry in right(0)}
    controls = [
        entry
        for entry in right(0)
        if entry.name in (names[f"composed: {part}"] for part in ("main", "sharded", "sampler"))
    ]
    found = [search(pool, FaultSearch(fault, 0, CASES), tmp_path) for fault in faults]
    found += [search(pool, FaultSearch(control, 0, 20), tmp_path) for control in controls]
    simulated = [control.planted for control in found[6:] if control.simulated]
    assert len(simulated) == 2
    really = search(pool, FaultSearch(simulated[0], 0, 20, not_simulated="asked for"), tmp_path)
    assert (really.simulated, really.real >= 20, really.is_caught) == (0, True, False)
    assert [(each.is_caught, each.is_right_rule) for each in found] == [
        *[(True, True)] * 6,
        *[(False, False)] * 3,
    ]
    text = populations.table(found)
    assert (
        "6 searches for planted faults: 6 (100.0 %) caught, 6 (100.0 %) by the right rule" in text
    )
    assert "; 6 (100.0 %) with a cause or a condition" in text
    assert [each.diagnosis for each in found[:6]].count("right") >= 4
    assert "wrong" not in {each.diagnosis for each in found}
    assert "a  own start" in text
    assert "60 cases of 3 controls (" in text
    assert ": 0 false violations" in text


@pytest.mark.parametrize("other", [("--catalogue", "."), ("--right", "1")])
def test_populations_exclude_each_other(other: tuple[str, str]) -> None:
    """The options name two populations."""
    done = CliRunner().invoke(main, ["faults", "--generated", "1", *other])
    assert done.exit_code == 64
    names = sorted(("--generated", other[0]), key=("--generated", "--right", "--catalogue").index)
    assert f"{names[0]} and {names[1]} exclude each other" in done.output
