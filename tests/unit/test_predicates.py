"""Tests of conditions on numbers: only a condition that all answers agree with is named."""

from collections.abc import Callable

import pytest

from ddp_invariants.search.predicates import Line, is_power_of_two, ranges


@pytest.mark.parametrize(
    ("words", "start", "fails"),
    [
        ("at least 65", 65, lambda number: number >= 65),
        ("at least 3000", 3001, lambda number: number >= 3000),
        ("at most 4", 2, lambda number: number <= 4),
        ("from 2 to 4", 3, lambda number: 2 <= number <= 4),
        ("3", 3, lambda number: number == 3),
        ("a multiple of 3", 3, lambda number: number % 3 == 0),
        ("no multiple of 3", 1, lambda number: number % 3),
        ("1 more than a multiple of 4", 1, lambda number: number % 4 == 1),
        ("odd", 1, lambda number: number % 2),
        ("even", 2, lambda number: number % 2 == 0),
        ("odd and at least 3", 3, lambda number: number % 2 and number > 1),
        ("a power of two", 1, is_power_of_two),
        ("no power of two", 3, lambda number: not is_power_of_two(number)),
    ],
)
def test_a_condition_is_named(words: str, start: int, fails: Callable[[int], bool]) -> None:
    """A few answers decide between the conditions."""
    asked: list[int] = []

    def ask(number: int) -> bool:
        asked.append(number)
        return bool(fails(number))

    predicate = Line(ask, start, 1, 20_000).predicate()
    assert predicate is not None
    assert predicate.words == words
    assert len(asked) == len(set(asked)) <= 24
    assert all(predicate.holds(number) == bool(fails(number)) for number in range(1, 100))


@pytest.mark.parametrize(
    "fails",
    [
        lambda _: True,
        lambda number: number in (2, 3, 5, 7, 11, 13, 17, 19, 23),
        lambda number: None if number != 2 else True,
        lambda number: True if number < 3 else None,
    ],
)
def test_no_condition_is_named_that_is_not_known(fails: Callable[[int], bool | None]) -> None:
    """No condition is named if every number fails, no known condition fits, or answers are missing."""
    assert Line(fails, 2, 1, 1000).predicate() is None


@pytest.mark.parametrize(
    ("start", "most", "fails"),
    [
        (4, 4, lambda number: number >= 4),
        (3, 4, lambda number: number % 2),
        (3, 5, lambda number: number % 2),
        (16, 16, lambda number: number >= 16),
    ],
)
def test_no_condition_is_named_that_only_the_largest_number_decides(
    start: int, most: int, fails: Callable[[int], bool]
) -> None:
    """Up to four ranks, nobody can tell `4` from `at least 4`."""
    assert Line(lambda number: bool(fails(number)), start, 2, most).predicate() is None
    assert Line(lambda number: bool(fails(number)), start, 2, 40).predicate() is not None


def test_numbers_in_a_row_are_a_range() -> None:
    """Two in a row are no range."""
    assert ranges([9, 1, 2, 3, 6, 5]) == "1 to 3, 5, 6, 9"
