"""GPU: on a device results do not change, however slow a stream is."""

from ddp_invariants.search.trial import Trial


def test_gpu1_same_however_slow_a_stream_is(trial: Trial) -> None:
    """Bit by bit, with the device kept busy before each collective, or each gradient: a missing wait shows every time."""
    trial.certify("GPU-1")
