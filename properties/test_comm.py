"""COMM: what is sent. The observed group sees every collective, those of torch's C++ code too."""

from ddp_invariants.search.trial import Trial


def test_comm1_all_ranks_issue_the_same_collectives(trial: Trial) -> None:
    """Kind, dtype, element count and reduce operation, in the same order."""
    trial.certify("COMM-1")


def test_comm2_the_timing_of_collectives_changes_no_bit(trial: Trial) -> None:
    """Every case is run twice: with results withheld or collectives delayed, and without."""
    trial.certify("COMM-2")


def test_comm3_nothing_is_left_in_flight(trial: Trial) -> None:
    """With results withheld until they are waited for, every one has been waited for when gradients are to be ready."""
    trial.certify("COMM-3")


def test_comm4_buckets_are_filled_to_their_capacity(trial: Trial) -> None:
    """As many reductions as a greedy filling makes, from the second step on."""
    trial.certify("COMM-4")


def test_comm5_communication_overlaps_backward(trial: Trial) -> None:
    """With at least two buckets."""
    trial.certify("COMM-5")


def test_comm6_bytes_per_step_are_observed(trial: Trial) -> None:
    """Measured and reported, never judged."""
    trial.certify("COMM-6")
