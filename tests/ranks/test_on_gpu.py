"""The suite on a CUDA device: tests that are collected everywhere, and run where a device is.

Run `pytest -m gpu tests/ranks/test_on_gpu.py` on such a machine. With -s, it prints the output that
docs/cluster.md should show.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
]
WAYS = ["gloo-cuda", "nccl", "nccl-shared"]
_ROW = re.compile(
    r"^([A-Z]+-\d+) +(holds|violated|inconclusive|not run|not claimed|observed|not tested) ",
    re.MULTILINE,
)


def held(*options: str) -> tuple[int, dict[str, str]]:
    """Return a session's exit status and its verdict for each rule."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "properties/", "-p", "no:cacheprovider", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    sys.stdout.write(done.stdout)
    return done.returncode, dict(_ROW.findall(done.stdout))


@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_who_is_right_is_not_accused(ddp: str, backend: str) -> None:
    """A right wrapper violates no rule.

    If there are too few devices, the rules that need more ranks are not run.
    """
    status, verdicts = held("--ddp", ddp, "--backend", backend, "--profile", "quick", "--seed", "1")
    assert "violated" not in verdicts.values()
    assert status in (0, 2)
    enough = backend == "gloo-cuda" or torch.cuda.device_count() > 1
    assert (
        verdicts["GRAD-3"]
        == verdicts["GPU-1"]
        == ("holds" if enough or backend == "nccl-shared" else "not run")
    )


@pytest.mark.parametrize(
    ("fault", "backends"),
    [("SendsTooEarly", WAYS[::2]), ("ReadsTooEarly", WAYS[2:]), ("ReadsItsCopyTooEarly", WAYS[:1])],
)
def test_a_wait_that_is_missing_between_streams_shows(fault: str, backends: list[str]) -> None:
    """GPU-1 catches a missing wait between streams.

    Each fault is run over the backends on which it is a fault. gloo itself waits for the processor,
    and takes only pinned tensors.
    """
    for backend in backends:
        status, verdicts = held(
            "--ddp", f"ddp_invariants.faults.streams:{fault}", "--backend", backend, "-k", "gpu1"
        )
        assert (status, verdicts["GPU-1"]) == (1, "violated")


@pytest.mark.parametrize("backend", WAYS)
def test_a_stream_of_its_own_is_no_fault(backend: str) -> None:
    """A wrapper with a stream of its own violates no rule if both streams wait."""
    status, verdicts = held(
        "--ddp",
        "ddp_invariants.faults.streams:WithAStream",
        "--backend",
        backend,
        "-k",
        "gpu1 or grad2",
    )
    assert status in (0, 2)
    assert "violated" not in verdicts.values()


@pytest.mark.parametrize("fault", ["HangsOnThree", "DiesInBackward"])
def test_what_hangs_or_dies_on_a_device_is_ended_and_replaced(fault: str) -> None:
    """A rank that hangs or dies leads to a verdict, and leaves nothing on the device."""
    status, verdicts = held(
        "--ddp",
        f"ddp_invariants.faults.timing:{fault}",
        "--backend",
        "gloo-cuda",
        "-k",
        "live1",
        "--cases",
        "20",
    )
    assert (status, verdicts["LIVE-1"]) == (1, "violated")
    free, total = torch.cuda.mem_get_info()
    assert free > 0.9 * total
