"""GPU: on a device, results do not depend on the speed of a stream."""

from hypothesis import given

from ddp_invariants import Ranks, cases_of
from ddp_invariants.cases.case import TrainingCase


@given(case=cases_of("GPU-1"))
def test_gpu1_same_however_slow_a_stream_is(case: TrainingCase, ranks: Ranks) -> None:
    """Results keep every bit when the device is kept busy before each collective or each gradient.

    The delay makes a missing wait show every time.
    """
    ranks.check("GPU-1", case)
