"""COMM: collectives.

The observed process group sees every collective, also those of torch's C++ code.
"""

from ddp_invariants.search.trial import Trial


def test_comm1_all_ranks_issue_the_same_collectives(trial: Trial) -> None:
    """All ranks issue the same collectives in the same order.

    Compared are kind, dtype, element count and reduce op.
    """
    trial.certify("COMM-1")


def test_comm2_the_timing_of_collectives_changes_no_bit(trial: Trial) -> None:
    """Withheld results and delayed collectives change no bit of the evidence.

    Every case runs twice: with and without them.
    """
    trial.certify("COMM-2")


def test_comm3_nothing_is_left_in_flight(trial: Trial) -> None:
    """When gradients must be ready, every collective has been waited for.

    Results are withheld until they are waited for.
    """
    trial.certify("COMM-3")


def test_comm4_buckets_are_filled_to_their_capacity(trial: Trial) -> None:
    """From the second step on, there are as many reductions as a greedy filling makes."""
    trial.certify("COMM-4")


def test_comm5_communication_overlaps_backward(trial: Trial) -> None:
    """With two buckets or more, a reduction starts before the last gradient is computed."""
    trial.certify("COMM-5")


def test_comm6_bytes_per_step_are_observed(trial: Trial) -> None:
    """The bytes of each step are measured and reported, but never judged."""
    trial.certify("COMM-6")
