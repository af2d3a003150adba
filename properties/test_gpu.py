"""GPU: on a device, results do not depend on the speed of a stream."""

from ddp_invariants.search.trial import Trial


def test_gpu1_same_however_slow_a_stream_is(trial: Trial) -> None:
    """Results keep every bit when the device is kept busy before each collective or each gradient.

    The delay makes a missing wait show every time.
    """
    trial.certify("GPU-1")
