"""Tests of replay and export: a stored violation is run again, or exported as a script.

The script shows the violation on a wrong implementation, and nothing on a right one.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lent import LentHosts
from stored import stored_violation

from conftest import Run, fault_of
from ddp_invariants import cli
from ddp_invariants.cases.case import ShardCase, TrainingCase, to_json
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    Data,
    InjectedFailure,
    LossScale,
    Optimizer,
    Perturbation,
    Poison,
    Unused,
)
from ddp_invariants.cli import pool as cli_pool
from ddp_invariants.cli import violations
from ddp_invariants.errors import CaseError, ExportError
from ddp_invariants.export import running
from ddp_invariants.export import script as export
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records import reading, violation
from ddp_invariants.records.folder import FOLDER
from ddp_invariants.records.verdict import Outcome
from ddp_invariants.report import terminal
from ddp_invariants.search.replay import replay
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.unused import UnusedLayers

ROOT = Path(__file__).parents[2]
RIGHT = {
    "ddp": "ddp_invariants.reference.ddp:DistributedDataParallel",
    "sampler": "ddp_invariants.reference.sampler:DistributedSampler",
}

SMALLEST = TrainingCase(model=Model(1, (Layer("linear"),)))
TWO_STEPS = replace(SMALLEST, steps=2, data=Data(samples=4))
ACCUMULATED = replace(SMALLEST, accumulation=2, data=Data(samples=4))
WITHHELD = SMALLEST.with_situation(Perturbed(Perturbation("withheld")))
CAPPED = replace(SMALLEST, bucket_cap=1, seed=1)
RICH = TrainingCase(
    model=Model(
        4,
        (
            Layer("embedding"),
            Layer("linear", 4, bias=True, activation="relu", layout="transposed"),
            Layer("linear", 4, layout="strided"),
            Layer("scale"),
            Layer("empty"),
            Layer("statistics"),
            Layer("extremes"),
            Layer("mixed"),
            Layer("counter"),
            Layer("shared_buffer"),
            Layer("linear", 4, tied=1, bias=True),
            Layer("linear", 4, layout="channels_last", activation="gelu"),
            Layer("linear", 4, dtype="complex64", bias=True, layout="strided"),
            Layer("scale", dtype="complex64"),
            Layer("convolution", 1, bias=True, layout="channels_last"),
            Layer("norm"),
            Layer("attention"),
            Layer("batch_norm", bias=True),
            Layer("batch_norm", dtype="float64"),
            Layer("dropout"),
            Layer("linear", 4, tied=0, bias=True),
            Layer("linear", 2, dtype="float64", bias=True),
            Layer("linear", 2, dtype="bfloat16", frozen=True),
        ),
    ),
    world_size=3,
    outside=1,
    steps=2,
    data=Data(samples=5, batch_size=2, shuffle=True),
    bucket_cap=64,
    values="real",
    optimizer=Optimizer("adamw", weight_decay=0.25),
    zero_grad="zero",
    seed=7,
)
"""A case with every kind of layer, layout and dtype, in a subgroup."""


def on_the_right_one(text: str, side: str) -> str:
    """Return a script whose `UNDER_TEST` line is changed to name the right implementation."""
    changed, times = re.subn(r"(?m)^UNDER_TEST = '[^']*'", f"UNDER_TEST = {RIGHT[side]!r}", text)
    assert times == 1
    return changed


def raising(parameter: int | None) -> TrainingCase:
    """Return a case of two buckets whose backward raises once."""
    plan = InjectedFailure("backward error", parameter=parameter)
    two = replace(CAPPED, model=Model(1, (Layer("linear"),) * 2), values="real")
    return two.with_situation(FailureInjection(plan))


DDPS: list[tuple[str, str, TrainingCase, str]] = [
    (
        "NoBroadcast",
        "INIT-1",
        SMALLEST,
        "rank 1 of 2, step 0, 'layers.0.weight': -1.0 at element 0, rank 0 built -2.0",
    ),
    (
        "NoBufferBroadcast",
        "INIT-2",
        replace(SMALLEST, model=Model(1, (Layer("linear"), Layer("statistics")))),
        "'layers.1.running'",
    ),
    (
        "SentAsDoubles",
        "INIT-2",
        replace(SMALLEST, model=Model(1, (Layer("linear"), Layer("extremes")))),
        "'layers.1.total'",
    ),
    ("NeverDivides", "GRAD-2", SMALLEST, "-48.0 at element 0, expected -24.0"),
    ("NeverDivides", "GRAD-8", ACCUMULATED, "rank 0 of 2, step 0, 'layers.0.weight'"),
    (
        "NeverDivides",
        "PARAM-3",
        replace(TWO_STEPS, optimizer=Optimizer(momentum=0.5), zero_grad="never"),
        "step 0, after it",
    ),
    (
        "DividesByTwo",
        "GRAD-2",
        replace(SMALLEST, world_size=3, data=Data(samples=3)),
        "rank 0 of 3",
    ),
    ("LargeParameterSkipped", "GRAD-1", CAPPED, "rank 1 of 2, step 0, 'layers.0.weight'"),
    ("LargeParameterSkipped", "PARAM-1", CAPPED, "step 0, after it, 'layers.0.weight'"),
    ("LeftoverBuffer", "GRAD-5", TWO_STEPS, "rank 0 of 2, step 1"),
    ("Forgets", "PARAM-3", TWO_STEPS, "step 1, when it starts"),
    ("ScrubsNaN", "GRAD-7", SMALLEST.with_situation(Poisoned(Poison(1, 0))), "expected nan"),
    ("AveragesTheLoss", "LOSS-1", SMALLEST, "the loss is"),
    ("ReducesInTwoWays", "COMM-1", SMALLEST, "rank 1 of 2, step 0, call"),
    ("NoWait", "COMM-3", WITHHELD, "is not waited for"),
    ("DividesInFlight", "COMM-3", WITHHELD, "written to while in flight"),
    ("WritesTheFailedResult", "LIVE-2", raising(None), "rank 0 of 2, step 0"),
    ("FailsOnlyHalfWay", "LIVE-2", raising(1), "rank 0 of 2, step 0"),
]


@pytest.mark.parametrize(
    ("fault", "rule", "case", "words"), DDPS, ids=[f"{row[0]}_{row[1]}" for row in DDPS]
)
def test_a_script_of_a_ddp_fails_with_the_fault_and_passes_without(
    pool: Pool, run: Run, fault: str, rule: str, case: TrainingCase, words: str
) -> None:
    """A script ends with status 1 and the rule's words, and with 0 if it names the right DDP."""
    text = export.script(pool, stored_violation(pool, case, rule, ddp=fault_of(fault)))
    assert "import ddp_invariants" not in text
    assert "from ddp_invariants" not in text
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, rule), output
    assert words in output
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


def test_a_script_makes_a_group_with_gaps(pool: Pool, run: Run) -> None:
    """Only in such a group is a size wrong that is counted from end to end."""
    case = replace(SMALLEST, outside=2)
    fault = "ddp_invariants.faults.starts:CountsFromEndToEnd"
    text = export.script(pool, stored_violation(pool, case, "GRAD-2", ddp=fault))
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, "GRAD-2"), output
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


def test_a_script_clears_gradients_in_two_ways(pool: Pool, run: Run) -> None:
    """Only then does a wrapper that asks the last parameter alone hold what another step left."""
    case = replace(
        TWO_STEPS,
        model=Model(1, (*(Layer("linear"),) * 3, Layer("linear", 4))),
        zero_grad="mixed",
    )
    fault = "ddp_invariants.faults.flattened:AsksTheLastParameter"
    text = export.script(pool, stored_violation(pool, case, "GRAD-5", ddp=fault))
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, "GRAD-5"), output
    right = text.replace("AsksTheLastParameter", "HandsBackViews")
    assert run(right) == (0, "not reproduced\n")


TWO_LAYERS = replace(TWO_STEPS, model=Model(1, (Layer("linear"), Layer("linear"))))


@pytest.mark.parametrize(
    ("name", "case", "words"),
    [
        (
            "accumulated:SendsWhatTheLastUsed",
            replace(TWO_LAYERS, accumulation=2).with_situation(
                UnusedLayers((Unused(1, micro_step=1),))
            ),
            "step 0, 'layers.1.weight'",
        ),
        (
            "dynamic:NoneWhereUnused",
            TWO_LAYERS.with_situation(UnusedLayers((Unused(1, rank=1),))),
            "rank 1 of 2, step 0, 'layers.1.weight'",
        ),
        (
            "dynamic:ZeroOnceUsed",
            TWO_LAYERS.with_situation(UnusedLayers((Unused(1, rank=0), Unused(1, step=1)))),
            "rank 1 of 2, step 1, 'layers.1.weight': [0.0]",
        ),
        (
            "dynamic:GhostInTheBuffer",
            TWO_LAYERS.with_situation(UnusedLayers((Unused(1, rank=1, step=1),))),
            "rank 0 of 2, step 1, 'layers.1.weight'",
        ),
        (
            "dynamic:FiringOrder",
            replace(TWO_STEPS, model=Model(1, (Layer("linear"), Layer("branches")))).with_situation(
                Crossed(1)
            ),
            "rank 1 of 2, step 0, 'layers.1.first'",
        ),
    ],
)
def test_a_script_computes_what_the_case_does_on_each_rank(
    pool: Pool, run: Run, name: str, case: TrainingCase, words: str
) -> None:
    """A script runs the layers and branches that the case runs on each rank.

    Layers are unused by micro-step, step and rank, in the wrapped model and in its unwrapped twin.
    Branches run in the rank's order.
    """
    rule = "GRAD-8" if case.accumulation > 1 else "GRAD-9" if case.unused else "GRAD-1"
    text = export.script(
        pool, stored_violation(pool, case, rule, ddp=f"ddp_invariants.faults.{name}")
    )
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, rule), output
    assert words in output
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


SCALED = TWO_STEPS.with_situation(
    Poisoned(Poison(0, 0, "inf")), Scaler(LossScale(4, unscaled=True))
)


@pytest.mark.parametrize(
    ("name", "right", "rule", "case", "words"),
    [
        (
            "scaled:keeps_what_it_finds",
            "scaled:shares_what_it_finds",
            "PARAM-6",
            SCALED,
            "rank 1 of 2, step 0, 'layers.0.weight': inf at element 0, the step started from -2.0",
        ),
        (
            "scaled:advances_its_state",
            "scaled:unscales_and_skips",
            "PARAM-6",
            replace(SCALED, optimizer=Optimizer(momentum=0.5)),
            (
                "rank 0 of 2, step 0, 'layers.0.weight/momentum_buffer': -inf at element 0, "
                "the state was 0.0"
            ),
        ),
        (
            "scaled:OverflowsAlone",
            "uneven:Joins",
            "PARAM-6",
            SCALED,
            "the step is made, and a gradient overflows",
        ),
        (
            "scaled:OverflowsAlone",
            "uneven:Joins",
            "GRAD-7",
            SCALED,
            "rank 1 of 2, step 0, 'layers.0.weight'",
        ),
    ],
)
def test_a_script_scales_the_loss(
    pool: Pool, run: Run, name: str, right: str, rule: str, case: TrainingCase, words: str
) -> None:
    """A script scales the loss in the wrapped model and its unwrapped twin.

    It shows which steps are skipped, and what moves in these steps.
    """
    text = export.script(
        pool, stored_violation(pool, case, rule, ddp=f"ddp_invariants.faults.{name}")
    )
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, rule), output
    assert words in output
    assert run(text.replace(f"faults.{name}'", f"faults.{right}'")) == (0, "not reproduced\n")


@pytest.mark.parametrize(
    ("fault", "rule", "words"),
    [
        ("SwitchesItOff", "LOSS-1", "the loss is"),
        ("LowersWhatItSends", "GRAD-2", "rank 0 of 2, step 0, 'layers.0.weight'"),
    ],
)
def test_a_script_runs_forwards_under_autocast(
    pool: Pool, run: Run, fault: str, rule: str, words: str
) -> None:
    """A script runs the forwards of the wrapped model and its twin under autocast."""
    case = replace(SMALLEST, values="real", situations=(Autocast(),))
    text = export.script(
        pool, stored_violation(pool, case, rule, ddp=f"ddp_invariants.faults.lowered:{fault}")
    )
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, rule), output
    assert words in output
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


def test_what_a_scaled_step_moves_is_beyond_a_script(pool: Pool) -> None:
    """A script is refused for a rule about the values of a scaled step.

    The rule compares such a step with the step of one process, and a script would show less.
    """
    stored = stored_violation(
        pool,
        replace(SCALED.without(Poisoned), steps=4, situations=(Scaler(LossScale(4, interval=1)),)),
        "PARAM-6",
        ddp="ddp_invariants.faults.scaled:unscales_by_the_first",
    )
    with pytest.raises(
        ExportError,
        match="a loss is scaled, and a script then shows only rules about skipped steps",
    ):
        export.script(pool, stored)


def test_a_script_knows_sparse_gradients(pool: Pool, run: Run) -> None:
    """A script handles sparse gradients of the wrapper and the twin.

    It shows nothing for the right wrapper, which keeps the gradients sparse.
    """
    case = replace(
        TWO_STEPS,
        model=Model(1, (Layer("embedding", sparse=True), Layer("linear"))),
        optimizer=Optimizer(),
        zero_grad="zero",
    )
    text = export.script(
        pool, stored_violation(pool, case, "GRAD-10", ddp="ddp_invariants.faults.kinds:SumsSparse")
    )
    status, output = run(text)
    assert (status, output.partition(":")[0]) == (1, "GRAD-10"), output
    assert "'layers.0.weight'" in output
    assert run(text.replace("SumsSparse", "StaysSparse")) == (0, "not reproduced\n")


SAMPLERS: list[tuple[str, str, ShardCase, str]] = [
    (
        "RanksShuffleDifferently",
        "SHARD-3",
        ShardCase(data=Data(samples=8, shuffle=True)),
        "repetitions, 0 allowed",
    ),
    (
        "IgnoresEpoch",
        "SHARD-5",
        ShardCase(epochs=(0, 1), data=Data(samples=13, shuffle=True)),
        "epochs 0 and 1 have the same",
    ),
    ("DropsTheTail", "SHARD-2", ShardCase(data=Data(samples=3)), "indices [2] are in no shard"),
    ("NoPadding", "SHARD-1", ShardCase(data=Data(samples=3)), "ranks yield [2, 1] indices"),
    ("AcceptsAnyRank", "SHARD-7", ShardCase(data=Data(samples=2)), "rank -1 of 2 is accepted"),
]


@pytest.mark.parametrize(
    ("fault", "rule", "case", "words"), SAMPLERS, ids=[f"{row[0]}_{row[1]}" for row in SAMPLERS]
)
def test_a_script_of_a_sampler_fails_with_the_fault_and_passes_without(
    pool: Pool, run: Run, fault: str, rule: str, case: ShardCase, words: str
) -> None:
    """A script of a sampler prints the shards and what is wrong with them."""
    text = export.script(pool, stored_violation(pool, case, rule, sampler=fault_of(fault)))
    status, output = run(text)
    assert status == 1, output
    assert f"{rule}: " in output
    assert words in output
    status, output = run(on_the_right_one(text, "sampler"))
    assert status == 0, output
    assert output.endswith("not reproduced\n")


@pytest.mark.parametrize(
    ("fault", "right", "rule", "case", "words"),
    [
        (
            "strided:EpochsAddUp",
            "Strided",
            "SHARD-4",
            ShardCase(epochs=(1, 0), data=Data(samples=13, shuffle=True)),
            "samplers that saw no other epoch yield",
        ),
        (
            "strided:IgnoresSeed",
            "Strided",
            "SHARD-4",
            ShardCase(data=Data(samples=13, shuffle=True)),
            "another seed gives",
        ),
        (
            "iterables:CyclesForEver",
            "Filled",
            "SHARD-1",
            ShardCase(data=Data(samples=3)),
            "rank 0 yields without end",
        ),
    ],
)
def test_a_script_of_a_sampler_asks_others_beside_it(
    pool: Pool, run: Run, fault: str, right: str, rule: str, case: ShardCase, words: str
) -> None:
    """A script compares a sampler with one that saw no other epoch, or with one of another seed.

    A sampler without `len` is not asked for its length.
    """
    text = export.script(
        pool, stored_violation(pool, case, rule, sampler=f"ddp_invariants.faults.{fault}")
    )
    status, output = run(text)
    assert status == 1, output
    assert words in output
    host = fault.partition(":")[0]
    status, output = run(text.replace(f"{fault}'", f"{host}:{right}'"))
    assert status == 0, output


@pytest.mark.parametrize(
    ("target", "right", "rule", "case", "words"),
    [
        (
            "iterables:WorkersRepeat",
            "iterables:PerWorker",
            "SHARD-10",
            ShardCase(data=Data(samples=5), workers=2),
            "rank 0: 2 workers of a DataLoader yield [0, 0, 2, 2, 4, 4], expected [0, 2, 4]",
        ),
        (
            "iterables:WorkersStartTogether",
            "iterables:PerWorker",
            "SHARD-10",
            ShardCase(data=Data(samples=6), workers=2),
            "rank 0: 2 workers of a DataLoader yield [0, 1, 4, 5], expected [0, 2, 4]",
        ),
        (
            "batches:LenOfTheShard",
            "batches:BatchedShard",
            "SHARD-6",
            ShardCase(data=Data(samples=6, batch_size=3), loader=True),
            "yields [1, 1] batches on the ranks, its len says [3, 3]",
        ),
    ],
)
def test_a_script_runs_a_data_loader(
    pool: Pool, run: Run, target: str, right: str, rule: str, case: ShardCase, words: str
) -> None:
    """A script runs a real DataLoader, with worker processes if the case has workers."""
    text = export.script(
        pool, stored_violation(pool, case, rule, sampler=f"ddp_invariants.faults.{target}")
    )
    status, output = run(text)
    assert status == 1, output
    assert f"{rule}: " in output
    assert words in output
    status, output = run(text.replace(f"faults.{target}'", f"faults.{right}'"))
    assert status == 0, output


@pytest.mark.parametrize(
    ("fault", "case", "words"),
    [
        (
            "Replays",
            ShardCase(data=Data(samples=6), saved_after=2),
            "rank 0 goes on with [0, 1, 2] after [0, 1], expected [2]",
        ),
        (
            "CountsAnew",
            ShardCase(data=Data(samples=6), saved_after=1),
            "saved once more, goes on with [1, 2], expected [2]",
        ),
        (
            "SkipsInEveryEpoch",
            ShardCase(data=Data(samples=6), saved_after=1),
            "epoch 1: rank 0 yields [1, 2] after a resumption, expected [0, 1, 2]",
        ),
        (
            "ForgetsTheEpoch",
            ShardCase(data=Data(samples=9, shuffle=True), epochs=(1,), saved_after=1),
            "rank 0 goes on with",
        ),
        (
            "DrainsWhatIsLeft",
            ShardCase(data=Data(samples=6), saved_after=1),
            "[0], and [] after its state was saved",
        ),
        (
            "CountsWithTheEpoch",
            ShardCase(data=Data(samples=6), saved_after=0),
            "rank 0 goes on with [1, 2] after [], expected [0, 1, 2]",
        ),
        (
            "ContinuesAfterTheEnd",
            ShardCase(data=Data(samples=5, batch_size=2), saved_after=2),
            "rank 0, saved at the end, yields [1, 2], expected none or an epoch",
        ),
    ],
)
def test_a_script_saves_and_loads_a_samplers_state(
    pool: Pool, run: Run, fault: str, case: ShardCase, words: str
) -> None:
    """A script saves and loads a sampler's state inside the last epoch, and again after a batch.

    It also looks at the next epoch.
    """
    text = export.script(
        pool,
        stored_violation(pool, case, "SHARD-9", sampler=f"ddp_invariants.faults.resumable:{fault}"),
    )
    status, output = run(text)
    assert status == 1, output
    assert "SHARD-9: " in output
    assert words in output
    assert f"resumable:{fault}'" in text
    host = "KeepsTheRest" if "num_replicas" in text else "Slices"
    right = run(text.replace(f"resumable:{fault}'", f"resumable:{host}'"))
    assert right[0] == 0, right
    assert right[1].endswith("not reproduced\n")


def test_a_script_of_a_hang_ends_itself_and_shows_where_it_hung(pool: Pool, run: Run) -> None:
    """A script of a hang is ended by its watchdog, with the stacks of all ranks."""
    deadline, pool.deadline = pool.deadline, 2.0
    case = replace(SMALLEST, world_size=3, data=Data(samples=3))
    try:
        text = export.script(
            pool, stored_violation(pool, case, "LIVE-1", ddp=fault_of("HangsOnThree"))
        )
    finally:
        pool.deadline = deadline
    assert "PATIENCE = 10 " in text
    status, output = run(text.replace("PATIENCE = 10 ", "PATIENCE = 3 "))
    assert status == 1
    assert "Timeout (0:00:03)!" in output
    assert "in wait" in output or "_wait" in output
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


def test_a_script_builds_the_model_the_case_describes(pool: Pool, run: Run) -> None:
    """A script builds the case's model and sees the number that was stored.

    The case has every kind of layer, layout and dtype, tied and frozen layers, and a subgroup.
    """
    stored = stored_violation(pool, RICH, "GRAD-2", ddp=fault_of("NeverDivides"))
    text = export.script(pool, stored)
    status, output = run(text)
    assert status == 1, output
    names, numbers = (
        re.findall(r"'(layers\.\S+)'", output),
        re.findall(r"(-?[\d.e-]+) at element", output),
    )
    assert f"parameter {names[0]!r}" in stored.failure.where
    got = re.match(r"(-?[\d.e+-]+) at", stored.failure.got)
    assert got is not None
    assert float(numbers[0]) == pytest.approx(float(got[1]), rel=1e-3)
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


DRAWING = Model(1, (Layer("linear", 96), Layer("dropout"), Layer("linear", 1)))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "SeedsAllAlike",
            "rank 0 of 2, step 0, the random numbers of forward 0 are those of rank 1",
        ),
        (
            "SeedsEveryForwardByRank",
            "rank 0 of 2, step 1, the random numbers of forward 1 are those of its forward 0",
        ),
    ],
)
def test_a_script_shows_who_draws_what_twice(pool: Pool, run: Run, fault: str, words: str) -> None:
    """A script shows which rank repeats random draws, without anything of the suite.

    With a right wrapper the script shows nothing.
    """
    case = TrainingCase(model=DRAWING, steps=2, data=Data(samples=4))
    text = export.script(
        pool, stored_violation(pool, case, "RNG-1", ddp=f"ddp_invariants.faults.seeded:{fault}")
    )
    assert run(text) == (1, f"RNG-1: {words}\n")
    assert run(on_the_right_one(text, "ddp")) == (0, "not reproduced\n")


OWN = '''
from contextlib import nullcontext
import torch.distributed as dist
from ddp_invariants.reference.ddp import DistributedDataParallel as Right

class Loud(Right):
    """Communicates inside no_sync, too."""
    def no_sync(self):
        return nullcontext()

class Called(Right):
    """Sums, by a call after backward that is found by its name, and is told its rank."""
    def __init__(self, model, rank, bucket_bytes=1 << 20, *, flavour):
        super().__init__(model)
        assert (rank, flavour, bucket_bytes) == (dist.get_rank(), "plain", 64)

    def sync_gradients(self):
        for parameter in self.parameters():
            parameter.grad.mul_(2)

class Adapter:
    """Brings methods of its own."""
    def wrap(self, module, context):
        assert context.world_size == 2
        return Right(module)

    def after_backward(self, wrapped, optimizer):
        for parameter in wrapped.parameters():
            parameter.grad.mul_(2)
'''


@pytest.mark.parametrize(
    ("name", "rule", "case", "words"),
    [
        ("Loud", "GRAD-8", ACCUMULATED, "inside no_sync, 'layers.0.weight'"),
        ("Called", "GRAD-2", replace(SMALLEST, bucket_cap=64), ""),
        ("Adapter", "GRAD-2", SMALLEST, ""),
    ],
)
def test_a_script_calls_as_the_suite_does(
    pool: Pool, run: Run, tmp_path: Path, name: str, rule: str, case: TrainingCase, words: str
) -> None:
    """A script calls the implementation as the suite does.

    This covers no_sync, arguments by their usual names, given arguments, units, a method after
    backward, and an adapter's methods.
    """
    (tmp_path / "own.py").write_text(OWN)
    ddp = Ddp(f"{tmp_path}/own.py:{name}", (("flavour", "plain"),) if name == "Called" else ())
    status, output = run(export.script(pool, stored_violation(pool, case, rule, ddp=ddp)))
    assert status == 1, output
    assert output.startswith(f"{rule}: ")
    assert words in output


def test_what_cannot_be_shown_by_a_script_is_refused_in_one_sentence(
    pool: Pool, tmp_path: Path
) -> None:
    """A violation that no script can show is refused in one sentence.

    The reasons are a course's functions, thousands of numbers, a method that trains a whole step,
    and a sampler that reads its environment.
    """
    stored = stored_violation(pool, SMALLEST, "GRAD-2", ddp=fault_of("NeverDivides"))
    with pytest.raises(
        ExportError, match=r"it has 13,\d+ numbers, more than the 4,000 a script spells out"
    ):
        export.script(
            pool, replace(stored, case=replace(SMALLEST, model=Model(80, (Layer("linear", 80),))))
        )
    with pytest.raises(ExportError, match="through a course's functions"):
        export.script(pool, replace(stored, ddp=Ddp("course:tests/helpers/shapes.py#bucketed")))
    (tmp_path / "own.py").write_text(
        "class Whole:\n    declares = {'stack': {}}\n\n"
        "    def train_step(self, parameters, inputs, targets, context): ...\n"
    )
    with pytest.raises(ExportError, match=r"train_step"):
        export.script(pool, replace(stored, ddp=Ddp(f"{tmp_path}/own.py:Whole")))
    asking = replace(stored, case=ShardCase(), sampler=Sampler("tests/helpers/shapes.py:AsksTorch"))
    with pytest.raises(ExportError, match="reads its rank from"):
        export.script(pool, asking)


def test_what_is_in_a_file_enters_a_script_as_text_alone(pool: Pool, run: Run) -> None:
    """Text of a hostile file ends up in the script's docstring, not in its program."""
    stored = stored_violation(pool, SMALLEST, "GRAD-2", ddp=fault_of("NeverDivides"))
    hostile = '"""\nraise SystemExit(7)\n"""\\'
    text = export.script(
        pool,
        replace(stored, failure=replace(stored.failure, where=hostile, got=hostile), torch=hostile),
    )
    assert run(text)[0] == 1


# Replay.


def outcome(pool: Pool, stored: violation.StoredViolation, ddp: str) -> tuple[Outcome, str]:
    """Return the outcome of a replay, and its report."""
    result = replay(pool, stored.case, Ddp(ddp), Sampler(), stored.failure.rule)
    return result.outcome, terminal.replay(result, "the command")


def test_a_replay_says_fixed_still_violated_or_inconclusive(pool: Pool) -> None:
    """A replay reports fixed, still violated or inconclusive.

    A refusal is inconclusive. A hang leaves every other rule open.
    """
    stored = stored_violation(
        pool,
        replace(SMALLEST, world_size=3, data=Data(samples=3)),
        "GRAD-2",
        ddp=fault_of("NeverDivides"),
    )
    status, output = outcome(pool, stored, "reference")
    assert status is Outcome.FIXED
    assert output.splitlines() == [
        "FIXED: GRAD-2 holds for reference in all of 3 runs in fresh processes",
        "  case      world_size=3 model=1->linear data=(samples=3)",
    ]
    status, output = outcome(pool, stored, fault_of("NeverDivides"))
    assert status is Outcome.VIOLATED
    assert output.startswith(
        "STILL VIOLATED in 3 of 3 runs in fresh processes\n"
        f"GRAD-2 violated by {fault_of('NeverDivides')}: "
    )
    assert output.endswith("repeat    the command")
    assert "  sent      it travelled in the only reduction of step 0" in output
    consequence = replace(stored, failure=replace(stored.failure, rule="PARAM-3"))
    _, output = outcome(pool, consequence, fault_of("NeverDivides"))
    assert "root cause (same case) GRAD-2: the gradient is not the mean" in " ".join(output.split())
    status, output = outcome(pool, stored, fault_of("RaisesOnWrap"))
    assert status is Outcome.INCONCLUSIVE
    assert "raised NotImplementedError in wrap of step 0: to be written" in output
    deadline, pool.deadline = pool.deadline, 2.0
    try:
        status, output = outcome(pool, stored, fault_of("HangsOnThree"))
    finally:
        pool.deadline = deadline
    assert status is Outcome.INCONCLUSIVE
    assert "a rank hung (LIVE-1)" in output


def test_a_bare_case_is_judged_by_every_rule(pool: Pool) -> None:
    """A bare case is judged by every rule, and a right implementation passes them all.

    The first violated rule is reported in full, and the other violated rules are named.
    """
    result = replay(pool, SMALLEST, Ddp(), Sampler())
    assert result.outcome is Outcome.FIXED
    assert {"INIT-1", "GRAD-2", "COMM-1", "LIVE-1"} <= set(result.rules)
    result = replay(pool, SMALLEST, Ddp(fault_of("NeverDivides")), Sampler())
    assert result.outcome is Outcome.VIOLATED
    output = terminal.replay(result, "")
    assert "GRAD-2 violated by" in output
    assert re.search(r"also +PARAM-3: ", output)
    assert (
        replay(pool, ShardCase(), Ddp(), Sampler(fault_of("AcceptsAnyRank"))).failures[0].rule
        == "SHARD-7"
    )


Command = Callable[..., Any]


@pytest.fixture
def command(host_addresses: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Return a function that runs the command line in a folder, on the hosts at hand."""
    monkeypatch.chdir(tmp_path)
    for module in (violations, cli_pool):
        monkeypatch.setattr(module, "Hosts", lambda **_: LentHosts(host_addresses))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return lambda *words: CliRunner().invoke(cli.main, words)


def test_the_commands_find_a_violation_by_its_id_and_torchrun_runs_the_script(
    pool: Pool, command: Command, tmp_path: Path
) -> None:
    """The commands find a violation by its id, and torchrun runs the exported script.

    An option can name another implementation, and a misspelt id gets a suggestion. The script fails
    under torchrun, too.
    """
    stored = stored_violation(pool, SMALLEST, "GRAD-2", ddp=fault_of("NeverDivides"))
    path = FOLDER / f"{stored.id}.json"
    violation.write(stored, path)
    still = command("replay", stored.id)
    assert (still.exit_code, still.stdout.splitlines()[0]) == (
        1,
        "STILL VIOLATED in 3 of 3 runs in fresh processes",
    )
    assert still.stdout.endswith(f"repeat    ddp-invariants replay {stored.id}\n")
    fixed = command("replay", str(path), "--ddp", "reference")
    assert (fixed.exit_code, fixed.stdout.splitlines()[0]) == (
        0,
        "FIXED: GRAD-2 holds for reference in all of 3 runs in fresh processes",
    )
    refused = command("replay", stored.id, "--ddp", fault_of("RaisesOnWrap"))
    assert (refused.exit_code, refused.stdout.partition(":")[0]) == (2, "INCONCLUSIVE")
    none = command("replay", stored.id, "--ddp", fault_of("Nothing"))
    assert (none.exit_code, none.stdout) == (64, "")
    assert none.stderr.startswith(f"ddp-invariants: --ddp {fault_of('Nothing')}: ")
    misspelt = command("export", stored.id[:-1] + "x")
    assert misspelt.exit_code == 64
    assert misspelt.stderr.endswith(f"no such file; did you mean {stored.id}?\n")
    script = command("export", stored.id)
    assert script.exit_code == 0, script.stderr
    (tmp_path / "repro.py").write_text(script.stdout)
    launched = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "repro.py",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert launched.returncode == 1
    assert (
        "GRAD-2: rank 0 of 2, step 0, 'layers.0.weight': -48.0 at element 0, expected -24.0"
        in launched.stdout
    )


def test_a_script_that_shows_nothing_is_not_handed_out(
    pool: Pool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that ends well, fails for another reason or never ends is not handed out.

    The command ends with status 2 and a sentence, and prints nothing to stdout.
    """
    stored = stored_violation(pool, SMALLEST, "GRAD-2", ddp=fault_of("NeverDivides"))
    violation.write(stored, Path("one.json"))
    for text, reason in (
        ("print('not reproduced')", "it ended with status 0 and said 'not reproduced'"),
        ("raise KeyError('GRAD-3: ')", "it ended with status 1 and said \"KeyError: 'GRAD-3: '\""),
        ("while True: pass", "it did not end within 1 s"),
    ):
        monkeypatch.setattr(export, "script", lambda *_, text=text: text)
        monkeypatch.setattr(running, "CHECK_SECONDS", 1.0 if "while" in text else 60.0)
        done = command("export", "one.json")
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"does not show the violation: {reason}" in done.stderr
        assert command("export", "one.json", "--unchecked").stdout == text
    Path("bare.json").write_text(to_json(SMALLEST))
    done = command("export", "bare.json")
    assert (done.exit_code, done.stdout) == (64, "")
    assert "holds only a case, and no violation" in done.stderr


def test_a_stored_violation_is_read_as_it_was_written(pool: Pool, tmp_path: Path) -> None:
    """A stored violation is read back exactly, with the bits of every moment.

    A reader that wants only the case gets the case. Evidence that is too long is left out.
    """
    stored = stored_violation(pool, SMALLEST, "GRAD-2", ddp=fault_of("NeverDivides"))
    path = tmp_path / "one.json"
    violation.write(stored, path)
    assert reading.read_any(path) == stored
    assert reading.read(path) == stored.case
    assert stored.evidence is not None
    noted = {
        (entry.moment, entry.step): entry.tensors for entry in stored.evidence.ranks[1].moments
    }
    reduced = noted["reduced", 0][0]
    assert (reduced.name, reduced.dtype, reduced.shape) == ("layers.0.weight", "float32", (1, 1))
    assert reduced.raw().hex() == "000040c2"  # -48
    large = stored_violation(
        pool,
        replace(SMALLEST, model=Model(300, (Layer("linear", 300),))),
        "GRAD-2",
        ddp=fault_of("NeverDivides"),
    )
    assert large.evidence is None
    assert re.match(
        r"the evidence has \d\.\d MiB, more than the 1 MiB that are stored", large.left_out
    )
    violation.write(large, path)
    assert path.stat().st_size < 10_000


def _wrong(plain: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return files that another program may have written, each with the expected message."""
    tensor = {"name": "w", "dtype": "float32", "shape": [2], "bits": "AAAA"}

    def holding(tensor: dict[str, Any]) -> dict[str, Any]:
        rank = {"moments": [{"moment": "built", "step": 0, "tensors": [tensor]}]}
        return {**plain, "evidence": {"ranks": [rank]}}

    return {
        "truncated": (json.dumps(plain)[:500], "not a JSON object"),
        "empty": ("", "not a JSON object"),
        "a list": ([plain], "not a JSON object"),
        "foreign": ({"kind": "pickle"}, "kind is 'pickle', expected 'training'"),
        "deep": ('{"kind":' * 2000 + "1" + "}" * 2000, "not a JSON object"),
        "no case": ({**plain, "case": 1}, "case.kind is None"),
        "missing": (
            {"kind": "violation", "form": violation.FORM, "case": plain["case"]},
            "failure: Field required",
        ),
        "older": ({**plain, "form": 1}, "the file has format 1; this version reads only format 2"),
        "unknown situation": (
            {**plain, "case": {**plain["case"], "situations": [{"kind": "eclipse"}]}},
            "case.situations.0: Input tag 'eclipse' found using 'kind' does not match any of",
        ),
        "unknown": ({**plain, "run": "rm"}, "run: Unexpected keyword argument"),
        "bad case": (
            {**plain, "case": {**plain["case"], "world_size": 0}},
            "case: world_size is 0, expected an integer",
        ),
        "bad type": (
            {**plain, "case": {**plain["case"], "steps": "2"}},
            "case.steps: Input should be a valid integer",
        ),
        "bad ddp": ({**plain, "ddp": {"name": 1}}, "ddp.name: Input should be a valid string"),
        "short bits": (holding(tensor), "'w' has 3 bytes; its dtype and shape need 8"),
        "no bits": (holding({**tensor, "bits": "§"}), "are not valid base64"),
        "bad dtype": (holding({**tensor, "dtype": "object"}), "unknown dtype 'object'"),
    }


def test_a_bad_file_gets_one_sentence(pool: Pool, tmp_path: Path) -> None:
    """A truncated, foreign, hostile or wrong file gets one sentence that names file and field."""
    stored = stored_violation(pool, SMALLEST, "GRAD-2", ddp=fault_of("NeverDivides"))
    path = tmp_path / "wrong.json"
    violation.write(stored, path)
    for name, (content, message) in _wrong(json.loads(path.read_text())).items():
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(CaseError) as raised:
            reading.read_any(path)
        assert str(raised.value).startswith(f"{path}: "), name
        assert message in str(raised.value), (name, str(raised.value))
        assert "\n" not in str(raised.value), name
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CaseError, match="not a text file"):
        reading.read_any(path)
    path.write_text(to_json(SMALLEST))
    assert reading.read_any(path) == SMALLEST
    with path.open("w") as file:
        file.truncate(violation.MOST_READ + 1)
    with pytest.raises(CaseError, match="a stored violation has at most"):
        reading.read_any(path)
