"""Devices: which requests are valid, what a machine can run, and where tensors are."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from handmade import CASE, right

from conftest import Session
from ddp_invariants.cases.program import Perturbation
from ddp_invariants.errors import CaseError
from ddp_invariants.invariants import judge
from ddp_invariants.processes.backends import Backend, DeviceInfo, bound, not_run, wanted
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.training import warm_up
from ddp_invariants.ranks.training.effects.surroundings import Surroundings
from ddp_invariants.ranks.training.effects.tensor_rate import TensorRate
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations import surroundings
from ddp_invariants.situations.perturbation import Perturbed

ROOT = Path(__file__).parents[2]
SEEN = DeviceInfo("9", "13.0", nccl=True, devices=2, node="a")
NCCL, SHARED = Backend("nccl", "cuda"), Backend("nccl-shared", "cuda")


def test_a_backend_that_contradicts_the_device_is_refused() -> None:
    """A backend that contradicts the device is refused in one sentence, before any rank starts."""
    with pytest.raises(CaseError, match="--backend nccl --device cpu: nccl needs tensors on cuda"):
        wanted("nccl", "cpu")
    assert [wanted("auto", None), wanted("gloo", None), wanted("auto", "cpu")] == [
        Backend("gloo", "cpu")
    ] * 3
    assert wanted("gloo", "cuda") == wanted("gloo-cuda", None) == Backend("gloo-cuda", "cuda")
    assert wanted("auto", "cuda") == NCCL
    assert [str(backend) for backend in (Backend(), NCCL, wanted("gloo", "cuda"))] == [
        "gloo",
        "nccl on cuda",
        "gloo on cuda",
    ]
    assert "experimental" in str(SHARED)


def test_what_a_machine_lacks_is_said() -> None:
    """The message names the first missing part in one clause; on the CPU nothing is missing."""
    assert not_run(Backend(), [DeviceInfo("9")]) == ""
    assert not_run(NCCL, [DeviceInfo("9")]) == "torch 9 is built without CUDA"
    assert not_run(NCCL, [SEEN, replace(SEEN, devices=0)]) == "torch 9 sees no CUDA device"
    assert not_run(NCCL, [replace(SEEN, nccl=False)]) == "torch 9 is built without NCCL"
    assert not_run(wanted("gloo", "cuda"), [replace(SEEN, nccl=False)]) == ""
    assert not_run(NCCL, [SEEN, SEEN]) == ""


@pytest.mark.parametrize(
    ("backend", "device_infos", "ranks"),
    [
        (NCCL, [SEEN], 2),
        (SHARED, [replace(SEEN, devices=1)], 2),
        (NCCL, [replace(SEEN, devices=1)], 1),
        (NCCL, [SEEN, SEEN, replace(SEEN, node="b"), replace(SEEN, node="b")], 4),
        (NCCL, [SEEN] * 3, 2),
        (SHARED, [SEEN] * 6, 4),
        (NCCL, [replace(SEEN, devices=1, visible=str(number)) for number in range(4)], 4),
    ],
)
def test_over_nccl_ranks_are_as_many_as_there_are_devices_for(
    backend: Backend, device_infos: list[DeviceInfo], ranks: int
) -> None:
    """There is one rank per device, or two ranks per device if ranks share devices.

    Each process of a job may see a device of its own.
    """
    limit = bound(backend, device_infos)
    assert limit is not None
    assert limit[0] == ranks
    share = "half a device" if backend == SHARED else "a device"
    assert f"each rank needs {share}, and the devices here suffice for {ranks}" in limit[1]
    assert bound(wanted("gloo", "cuda"), device_infos) is None


def test_where_there_is_one_rank_what_takes_more_is_not_run(session: Session) -> None:
    """With one rank, rules that need several ranks are `not run`; others are judged as usual.

    The report names the reason, `--max-world-size 1`. Cases on one rank are judged, but prove
    nothing about these rules. The exit status is therefore 2.
    """
    done = session(
        "pytest",
        str(ROOT / "properties"),
        "--max-world-size",
        "1",
        "--cases",
        "8",
        "-k",
        "grad1 or grad2 or grad5 or comm2 or param2",
        "-p",
        "no:cacheprovider",
    )
    assert done.returncode == 2, done.stdout
    rows = dict(
        re.findall(
            r"^([A-Z]+-\d+) +(not run|holds|not tested|not claimed|inconclusive)",
            done.stdout,
            re.MULTILINE,
        )
    )
    judged = [rows[rule] for rule in ("GRAD-1", "GRAD-2", "COMM-2", "PARAM-2")]
    assert judged == ["not run"] * 4, done.stdout
    assert rows["GRAD-5"] == "holds"
    assert "--max-world-size 1" in done.stdout


def evidence(slowed: int, *, plain: TrainingEvidence | None) -> TrainingEvidence:
    """Return evidence of a run with a slowed stream, and of the same run without (`plain`)."""
    run = right()
    return replace(
        run,
        case=run.case.with_situation(
            Perturbed(Perturbation("slow communication", milliseconds=20))
        ),
        ranks=tuple(replace(rank, slowed=slowed) for rank in run.ranks),
        unperturbed=plain,
    )


def test_a_stream_is_slowed_in_two_steps_at_least() -> None:
    """In the first step, a device that loads a kernel may wait for all streams."""
    slowed = Perturbed(Perturbation("slow computation", milliseconds=20))
    assert CASE.steps > 1
    assert CASE.with_situation(slowed)
    with pytest.raises(CaseError, match="at least 2 if a stream is slowed"):
        replace(CASE, steps=1).with_situation(slowed)


@pytest.mark.parametrize("warn_only", [False, True])
def test_the_mode_of_a_device_outlasts_a_case_that_changes_it(*, warn_only: bool) -> None:
    """A rank on a device only warns of operations that are not deterministic."""
    unusual = surroundings.Surroundings(("deterministic",))
    setup = SimpleNamespace(case=CASE.with_situation(unusual), rank_device=RankDevice())
    try:
        torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)
        effect = Surroundings(setup)  # type: ignore[arg-type]  # a stand-in
        effect.before_wrapping(None)  # type: ignore[arg-type]  # not read
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        effect.end(None)  # type: ignore[arg-type]  # not read
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(mode=False)


@dataclass(frozen=True)
class Rates:
    """The part of an adapter's context that is about learning rates."""

    lr: float
    optimizer_arguments: dict[str, object]


@pytest.mark.parametrize(("arguments", "where"), [({}, "meta"), ({"fused": True}, "cpu")])
def test_a_rate_lies_where_torch_s_kernels_read_it(
    arguments: dict[str, object], where: str
) -> None:
    """Fused kernels of a device read no float64 there."""
    device = SimpleNamespace(put=lambda tensor: tensor.to("meta"))
    effect = TensorRate(SimpleNamespace(case=CASE, rank_device=device))  # type: ignore[arg-type]  # a stand-in
    context = effect.on_optimizer(Rates(0.5, arguments))  # type: ignore[arg-type]  # a stand-in
    rate = context.optimizer_arguments["lr"]
    assert isinstance(rate, torch.Tensor)
    assert (rate.device.type, rate.dtype) == (where, torch.float64)


def test_gpu1_compares_with_a_run_in_which_nothing_is_slowed() -> None:
    """GPU-1 compares a slowed run bitwise with a run at normal speed.

    On the CPU no stream is slowed, so the rule does not apply.
    """
    plain = right()
    held = judge(evidence(3, plain=plain))["GPU-1"]
    assert held.failure is None
    assert held.compared > 10
    assert held.met == {"a slow communication stream"}
    assert "on the CPU" in judge(evidence(0, plain=plain))["GPU-1"].unjudged
    assert judge(evidence(3, plain=None))["GPU-1"].unjudged
    assert judge(plain)["GPU-1"].unjudged
    different = replace(right(replace(CASE, seed=1)), case=CASE)
    failure = judge(evidence(3, plain=different))["GPU-1"].failure
    assert failure is not None
    assert (
        failure.perhaps
        == "it changes when the device does nothing for 20 ms before each collective"
    )


def test_a_host_asks_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host never queries for a device: the query initialises it, and forked ranks cannot use it.

    Adam queries for a device in every step.
    """
    queries: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: queries.append("is_available"))
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda **_: queries.append("current_accelerator")
    )
    before = dict(vars(torch.optim.Optimizer))
    warm_up.warm_up()
    assert queries == []
    assert dict(vars(torch.optim.Optimizer)) == before
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.Adam([parameter]).step()
    assert queries


def test_whatever_a_rank_computes_with_is_on_its_device() -> None:
    """All tensors of a rank are on its device, and so is all that the reference sends.

    The script runs models, batches, twins (unwrapped modules), optimizers and between-steps actions
    on a device without values. A mix of this device and the CPU raises.
    """
    done = subprocess.run(
        [sys.executable, "tests/helpers/on_a_device.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    at_least = {
        "cases alone": 25,
        "cases together": 25,
        "away": 1001,
        "tensors sent": 300,
        "counts of steps": 11,
        "sparse gradients": 1,
        "operators under autocast": 1,
    }
    assert set(seen) == set(at_least)
    assert {kind: seen[kind] for kind in seen if seen[kind] < at_least[kind]} == {}
