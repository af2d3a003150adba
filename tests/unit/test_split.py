"""Tests of runs that are split: no two parts draw the same case, and none is lost."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from handmade import CASE
from hypothesis import given
from hypothesis import strategies as st

from ddp_invariants.cases.case import Case, ShardCase, case_id
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import MergeError, NamingError
from ddp_invariants.search.exhaustion import small_cases
from ddp_invariants.search.runner import Options
from ddp_invariants.search.search import Asked, Search
from ddp_invariants.search.split import MOST, WHOLE, Split, in_order
from ddp_invariants.search.strategies import cases_for

SEEDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from((0, 1, 7, 2**31, 2**32, -(2**40)))


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Draw a part of a run."""
    count = draw(st.integers(2, MOST))
    return Split(draw(st.integers(1, count)), count)


def dealing(seed: int) -> ShardCase:
    """Return a sampler's case with a seed."""
    return ShardCase(2, Data(samples=5, seed=seed))


@given(splits(), st.integers(0, 2**31 - 1))
def test_a_training_case_gets_a_seed_of_its_part(split: Split, seed: int) -> None:
    """Each part moves each seed to one that it owns, and no other part owns that seed."""
    case = split.own(_seeded(seed))
    owners = [Split(number, split.count).owns(case) for number in range(1, split.count + 1)]
    assert split.owns(case)
    assert sum(owners) == 1
    assert split.own(case) == case


def _seeded(seed: int) -> Case:
    """Return a training case with a seed."""
    return replace(CASE, seed=seed)


@given(splits(), SEEDS)
def test_a_samplers_case_gets_a_seed_of_its_part_and_its_size(split: Split, seed: int) -> None:
    """A sampler's seed stays large, small or negative, and belongs to one part alone."""
    own = split.own_dealing(dealing(seed))
    assert split.owns(own)
    assert not Split(split.number % split.count + 1, split.count).owns(own)
    moved = own.data.seed
    assert moved == 0 or seed == 0 or (moved < 0) == (seed < 0)
    if abs(seed) > 2**31 + MOST or abs(seed) in (2**31, 2**32):
        assert abs(moved) >= 2**31
    if abs(seed) < 2**15:
        assert abs(moved) < 2**31


@given(splits())
def test_small_seeds_of_a_sampler_stay_different(split: Split) -> None:
    """The seeds that are drawn most remain different from one another."""
    moved = {split.own_dealing(dealing(seed)).data.seed for seed in range(8)}
    assert len(moved) == 8


@pytest.mark.parametrize("rule", ["GRAD-2", "SHARD-3"])
def test_parts_draw_disjoint_cases(rule: str) -> None:
    """No two parts draw the same case, and the split does not change a whole run."""
    drawn = {split: _drawn(rule, split) for split in (Split(1, 3), Split(2, 3), Split(3, 3))}
    ids = [{case_id(case, "") for case in cases} for cases in drawn.values()]
    assert all(len(cases) > 10 for cases in ids)
    assert sum(map(len, ids)) == len(set.union(*ids))
    assert all(split.owns(case) for split, cases in drawn.items() for case in cases)
    assert all(WHOLE.own(case) == case for case in _drawn(rule, WHOLE))


def _drawn(rule: str, split: Split) -> list[Case]:
    """Return the cases that a part of a session draws for a rule."""
    drawn: list[Case] = []
    runner: Any = SimpleNamespace(options=Options(seed=7, split=split))
    search = Search(runner, rule)
    search.look_at = lambda asked, **_: drawn.append(asked.case)  # type: ignore[method-assign]  # no ranks
    cases: Any = cases_for(rule, Scope())
    search.drive("it", cases.map(lambda case: Asked(rule, case)), 25)
    return drawn


def test_simpler_cases_are_of_the_same_part() -> None:
    """A part that makes a case simpler tries no case of another part."""
    split = Split(3, 7)
    runner: Any = SimpleNamespace(options=Options(split=split))
    plainer = list(Search(runner, "GRAD-2")._plainer(split.own(_seeded(100))))
    assert plainer
    assert all(map(split.owns, plainer))


def test_the_small_cases_of_a_sampler_are_dealt_out_once() -> None:
    """The parts together ask for each small case of a sampler once."""
    every = list(small_cases(Scope()))
    parts = [Split(number, 4).deal(every) for number in range(1, 5)]
    assert sorted(map(str, (case for part in parts for case in part))) == sorted(map(str, every))


@given(st.integers(1, 50), st.integers(0, 200))
def test_the_parts_draw_as_many_cases_as_the_whole(count: int, more: int) -> None:
    """The numbers of cases of all parts add up to the number that was asked for."""
    total = count + more
    assert sum(Split(number, count).cases(total) for number in range(1, count + 1)) == total


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/1001", "-1/3", "a/b", "1/3/4", "", "³/9"])
def test_a_text_that_names_no_part_is_refused(text: str) -> None:
    """A part is written I/N, and nothing else is read."""
    with pytest.raises(NamingError, match="expected I/N"):
        Split.read(text)


def test_fewer_cases_than_parts_are_refused() -> None:
    """A part without any case would prove nothing."""
    with pytest.raises(NamingError, match="2 cases per property cannot be split into 3 parts"):
        Split(1, 3).cases(2)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        (["1/3", "3/3"], "1 of 3 shards are missing: 2"),
        (["1/2", "1/2", "2/2"], "shard 1/2 is there twice"),
        (["1/2", "2/3"], "of 2 and of 3 shards"),
        (["1/2", ""], "was not split"),
    ],
)
def test_parts_that_do_not_make_a_whole_are_refused(shards: list[str], words: str) -> None:
    """A missing, repeated or foreign part is refused with the reason."""
    with pytest.raises(MergeError, match=words):
        in_order(shards, shards)
    assert in_order(["2/2", "1/2"], ["b", "a"]) == ["a", "b"]
