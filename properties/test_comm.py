"""COMM: collectives.

The observed process group sees every collective, also those of torch's C++ code.
"""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("COMM-1"))
def test_comm1_all_ranks_issue_the_same_collectives(case: TrainingCase, ranks: Ranks) -> None:
    """All ranks issue the same collectives in the same order.

    Compared are kind, dtype, element count and reduce op.
    """
    ranks.check("COMM-1", case)


@given(case=cases_of("COMM-2"))
def test_comm2_the_timing_of_collectives_changes_no_bit(case: TrainingCase, ranks: Ranks) -> None:
    """Withheld results and delayed collectives change no bit of the evidence.

    Every case runs twice: with and without them.
    """
    ranks.check("COMM-2", case)


@given(case=cases_of("COMM-3"))
def test_comm3_nothing_is_left_in_flight(case: TrainingCase, ranks: Ranks) -> None:
    """When gradients must be ready, every collective has been waited for.

    Results are withheld until they are waited for.
    """
    ranks.check("COMM-3", case)


@given(case=cases_of("COMM-4"))
def test_comm4_buckets_are_filled_to_their_capacity(case: TrainingCase, ranks: Ranks) -> None:
    """From the second step on, there are as many reductions as a greedy filling makes."""
    ranks.check("COMM-4", case)


@given(case=cases_of("COMM-5"))
def test_comm5_communication_overlaps_backward(case: TrainingCase, ranks: Ranks) -> None:
    """With two buckets or more, a reduction starts before the last gradient is computed."""
    ranks.check("COMM-5", case)


@given(case=cases_of("COMM-6"))
def test_comm6_bytes_per_step_are_observed(case: TrainingCase, ranks: Ranks) -> None:
    """The bytes of each step are measured and reported, but never judged."""
    ranks.check("COMM-6", case)
