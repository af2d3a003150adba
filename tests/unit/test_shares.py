"""Tests of the share of parameters that MEM-1 allows a rank to which whole parameters are dealt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_invariants.invariants.mem import _largest_share

Parameter = tuple[int, int, bool]
"""The bytes of an element, the number of elements, and whether it is trained."""

parameters = st.lists(
    st.tuples(st.sampled_from((4, 8, 16)), st.integers(1, 40), st.booleans()),
    min_size=1,
    max_size=9,
).filter(lambda drawn: any(is_trained for *_, is_trained in drawn))


def largest_share(drawn: list[Parameter], holders: int) -> float:
    """Return the bytes that MEM-1 allows."""
    trained = [(size, count) for size, count, is_trained in drawn if is_trained]
    frozen = [(size, count) for size, count, is_trained in drawn if not is_trained]
    return _largest_share(trained, frozen, holders, 1)


def dealt(drawn: list[Parameter], holders: int, way: str) -> list[int]:
    """Return the bytes of trained parameters that each rank gets."""
    loads, held = [0] * holders, [0] * holders
    for number, (size, count, is_trained) in enumerate(drawn):
        if way == "number":
            rank = number % holders
        elif way == "neighbours":
            rank = number // -(-len(drawn) // holders)
        else:
            rank = loads.index(min(loads))
        loads[rank] += size * count if way == "bytes" else count
        held[rank] += size * count * is_trained
    return held


@pytest.mark.parametrize("way", ["bytes", "elements", "number", "neighbours"])
@given(drawn=parameters, holders=st.integers(2, 5))
def test_no_usual_way_to_deal_gives_a_rank_more(
    way: str, drawn: list[Parameter], holders: int
) -> None:
    """Whichever way whole parameters are dealt, no rank gets more than the largest share."""
    assert max(dealt(drawn, holders, way)) <= largest_share(drawn, holders) + 1e-9


@given(sizes=st.lists(st.integers(5, 9), min_size=8, max_size=12), holders=st.integers(2, 4))
def test_the_whole_is_more_than_the_largest_share(sizes: list[int], holders: int) -> None:
    """A rank that holds everything holds more, if no parameter is much larger than the others."""
    drawn = [(4, size, True) for size in sizes]
    assert sum(4 * size for size in sizes) > largest_share(drawn, holders)
