"""The suite on a CUDA device: collected everywhere, run where there is one.

`pytest -m gpu tests/test_on_gpu.py` on such a machine. What it prints with -s is what
docs/cluster.md wants to show.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
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
    """A session's exit status, and what it says of each rule."""
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
    """By no rule; where devices are too few for more ranks, what takes these is not run."""
    status, said = held("--ddp", ddp, "--backend", backend, "--profile", "quick", "--seed", "1")
    assert "violated" not in said.values()
    assert status in (0, 2)
    enough = backend == "gloo-cuda" or torch.cuda.device_count() > 1
    assert (
        said["GRAD-3"]
        == said["GPU-1"]
        == ("holds" if enough or backend == "nccl-shared" else "not run")
    )


@pytest.mark.parametrize(
    ("fault", "backends"),
    [("SendsTooEarly", WAYS[::2]), ("ReadsTooEarly", WAYS[2:]), ("ReadsItsCopyTooEarly", WAYS[:1])],
)
def test_a_wait_that_is_missing_between_streams_shows(fault: str, backends: list[str]) -> None:
    """Over the backends on which it is one: gloo's own wait is for the processor, and takes no tensor but pinned ones."""
    for backend in backends:
        status, said = held(
            "--ddp", f"ddp_invariants.faults.streams:{fault}", "--backend", backend, "-k", "gpu1"
        )
        assert (status, said["GPU-1"]) == (1, "violated")


@pytest.mark.parametrize("backend", WAYS)
def test_a_stream_of_its_own_is_no_fault(backend: str) -> None:
    """Where both streams wait."""
    status, said = held(
        "--ddp",
        "ddp_invariants.faults.streams:WithAStream",
        "--backend",
        backend,
        "-k",
        "gpu1 or grad2",
    )
    assert status in (0, 2)
    assert "violated" not in said.values()


@pytest.mark.parametrize("fault", ["HangsOnThree", "DiesInBackward"])
def test_what_hangs_or_dies_on_a_device_is_ended_and_replaced(fault: str) -> None:
    """A verdict comes of it, and nothing is left on the device."""
    status, said = held(
        "--ddp",
        f"ddp_invariants.faults.timing:{fault}",
        "--backend",
        "gloo-cuda",
        "-k",
        "live1",
        "--cases",
        "20",
    )
    assert (status, said["LIVE-1"]) == (1, "violated")
    free, total = torch.cuda.mem_get_info()
    assert free > 0.9 * total
