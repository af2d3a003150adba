"""A property of one's own in a session: the rule of `own_property.py`, for any implementation.

    pytest examples/session_property.py --ddp torch

A `conftest.py` that names the plugin `ddp_invariants.plugin` is needed outside this repository.
"""

from hypothesis import given
from own_property import small_buckets

from ddp_invariants import Ranks
from ddp_invariants.cases.case import TrainingCase


@given(case=small_buckets())
def test_comm100_gradients_keep_their_dtype(case: TrainingCase, ranks: Ranks) -> None:
    """Gradients travel in a dtype that some parameter has."""
    ranks.check("COMM-100", case)
