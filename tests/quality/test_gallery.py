"""Every system of the gallery gets the verdict that stands beside its name."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import ROOT, VERDICTS, judged
from probed import Discover
from torch.utils.data import DistributedSampler

from ddp_invariants.discovery.unsettled import unsettled
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search import search

_SPEC = importlib.util.spec_from_file_location("program", ROOT / "examples" / "program.py")
assert _SPEC is not None
assert _SPEC.loader is not None
program = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(program)


LONG = ("bucketed_main_grad", "bucketed_main_grad_corrected", "per_parameter_hook_corrected")
"""Systems whose styles are also covered by planted faults and controls."""
FEW = 8
"""The cases of a property; a long test of each system draws twice as many.

A system that violates LIVE-2 is judged on 40 cases, once.
"""


@pytest.mark.parametrize(
    ("entry", "cases"),
    [
        pytest.param(
            entry,
            cases,
            id=name if cases == FEW else f"{name}, {cases} cases",
            marks=[] if cases == FEW and name not in LONG else [pytest.mark.long],
        )
        for cases in (FEW, 2 * FEW)
        for name, entry in VERDICTS.items()
        if cases == FEW or entry.get("violated") != "LIVE-2"
    ],
)
def test_a_system_comes_out_with_the_verdict_beside_it(
    pool: Pool,
    discovered: Discover,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: dict[str, Any],
    cases: int,
) -> None:
    """A wrong system violates the named rule, with its cause, and at most its consequences.

    A right system violates no rule, and no probe shows a failure that nothing explains.
    """
    monkeypatch.setattr(
        search, "SHRINK_RUNS", 60
    )  # Runs per rule: this test does not need the smallest case.
    # One caught exception in some ten has the place and the parameters at which it does harm.
    cases = 40 if entry.get("violated") == "LIVE-2" else cases
    result = judged(entry, pool, tmp_path, cases=cases, discover=discovered)
    violations = {rule: str(violation) for rule, violation in result.violations.items()}
    assert result.inconclusive == {}
    if "violated" not in entry:
        assert violations == {}
        assert [*unsettled(result.discovery, 4)] == []
        assert {
            rule: entry.failures
            for rule, entry in result.trial.ledger.entries.items()
            if entry.seen
        } == {}
        return
    assert set(violations) <= {entry["violated"], *entry["consequences"]}, violations
    assert entry["cause"] in result.violations[entry["violated"]].failure.perhaps


def losses_in_one_process(world_size: int) -> list[float]:
    """Return the losses the program should report, computed on the global batches in float64."""
    torch.manual_seed(0)
    module = program.make_module().double()
    optimizer = torch.optim.SGD(module.parameters(), lr=program.LEARNING_RATE)
    inputs, targets = (tensor.double() for tensor in program.make_dataset().tensors)
    dataset: Any = range(program.SAMPLES)
    samplers: list[DistributedSampler[int]] = [
        DistributedSampler(dataset, world_size, rank) for rank in range(world_size)
    ]
    reported = []
    for epoch in range(program.EPOCHS):
        losses = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shards = torch.tensor([list(sampler) for sampler in samplers])
        for batch in shards.split(program.BATCH, dim=1):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(
                module(inputs[batch.flatten()]), targets[batch.flatten()]
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        reported.append(sum(losses) / len(losses))
    return reported


@pytest.mark.parametrize("how", [["--spawn", "2"], []], ids=["spawn", "torchrun"])
def test_the_program_trains_as_one_process_would_on_the_global_batches(
    tmp_path: Path, how: list[str]
) -> None:
    """The reported losses agree to four digits, and the checkpoint loads without a wrapper."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    launcher = [sys.executable, *([] if how else torchrun)]
    done = subprocess.run(
        [*launcher, str(program.__file__), *how, "--checkpoint", str(tmp_path / "model.pt")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    losses = [float(number) for number in re.findall(r"loss ([\d.]+) over 2 ranks", done.stdout)]
    assert losses == pytest.approx(losses_in_one_process(2), abs=1.01e-4)
    program.make_module().load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
