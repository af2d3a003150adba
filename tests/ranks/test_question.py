"""Tests of the script of a difference: it prints what its own interpreter answers, and no more."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Run
from ddp_invariants.cases.case import ShardCase, TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    Data,
    InjectedFailure,
    Optimizer,
    Perturbation,
)
from ddp_invariants.errors import ExportError
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.upgrades import question
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.outcome import Gated, ShrunkDifference

SMALLEST = TrainingCase(model=Model(1, (Layer("linear"),)))
RICH = replace(
    SMALLEST,
    world_size=2,
    outside=1,
    steps=2,
    accumulation=2,
    data=Data(samples=8),
    bucket_cap=64,
    optimizer=Optimizer("adamw"),
    model=Model(
        4, (Layer("linear", 4, bias=True, layout="strided"), Layer("statistics"), Layer("scale"))
    ),
)
SHARDS = ShardCase(world_size=2, epochs=(0, 1), data=Data(samples=3))
TORCH = Ddp("torch"), Sampler("torch")


def script_of(
    pool: Pool,
    name: str,
    case: TrainingCase | ShardCase | None,
    where: str = "rank 0",
    under_test: tuple[Ddp, Sampler] = TORCH,
) -> str:
    """Return the script of a difference with this name."""
    kind, _, fact = name.partition(": ")
    assert kind in ("rule", "discrete", "rounding", "number", "unbounded")
    difference = Difference(kind, fact, where, "before", "after")  # type: ignore[arg-type]  # seen
    return question.script(pool, difference, case, *under_test, "it.py")


@pytest.mark.parametrize(
    ("name", "case", "lines"),
    [
        (
            "number: reduced gradient",
            SMALLEST,
            [r"rank 1: step 0: gradient of layers\.0\.weight: float32 \(1, 1\) \[-24\.0\]"],
        ),
        (
            "number: reduced gradient",
            replace(SMALLEST, model=Model(1, (Layer("linear", dtype="complex64"),))),
            [
                (
                    r"rank 1: step 0: gradient of layers\.0\.weight: "
                    r"complex64 \(1, 1\) \[-?\d+\.0, -?\d+\.0\]"
                )
            ],
        ),
        (
            "discrete: gradients that are None",
            replace(SMALLEST, model=Model(1, (Layer("linear"), Layer("linear", frozen=True)))),
            [r"rank 0: step 0: gradient of layers\.1\.weight: None"],
        ),
        (
            "number: local gradient",
            RICH,
            [r"rank 1: step 1, micro-step 1: local gradient of layers\.0\.bias: float32 \(4,\) \["],
        ),
        (
            "rule: PARAM-3",
            RICH,
            [
                r"rank 0: step 1: after it layers\.2\.factor: float32 \(\) \[",
                (
                    r"rank 1: step 0: state of the optimizer, "
                    r"layers\.2\.factor/exp_avg: float32 \(\) \["
                ),
            ],
        ),
        (
            "number: forward",
            RICH,
            [
                r"rank 0: wrapped: layers\.1\.count: int64 \(\) \[",
                r"rank 0: step 1, micro-step 1: loss \d",
            ],
        ),
        (
            "unbounded: buffers",
            RICH,
            [r"rank 1: step 1: after it, buffer layers\.1\.running: float32 \(4,\) \["],
        ),
        (
            "discrete: collectives",
            SMALLEST,
            ["rank 0: broadcast float32 x 1 from 0", "rank 1: allreduce float32 x 1 SUM"],
        ),
        (
            "discrete: the wrapped module",
            RICH,
            [r"rank 0: wrapped: buffer layers\.1\.seen torch\.bool \(4,\)"],
        ),
        (
            "discrete: names in a saved state",
            replace(SMALLEST, steps=2).with_situation(Actions((BetweenSteps("reload"),))),
            [r"rank 0: names in its state: \['module\.layers\.0\.weight'\]"],
        ),
        (
            "rule: LIVE-2",
            SMALLEST.with_situation(FailureInjection(InjectedFailure("backward error"))),
            ["rank 0: step 0: the user's own exception reaches the user"],
        ),
        (
            "discrete: capability scalar",
            None,
            [r"rank 1: step 0: gradient of layers\.\d\.factor: float32 \(\) \["],
        ),
        (
            "discrete: end of the run",
            replace(SMALLEST, model=Model(1, (Layer("linear", frozen=True), Layer("linear")))),
            ["rank 0: it ends by itself", "rank 1: it ends by itself"],
        ),
    ],
)
def test_a_script_prints_what_its_interpreter_answers(
    pool: Pool, run: Run, name: str, case: TrainingCase, lines: list[str]
) -> None:
    """A script prints its interpreter's version, then its answers about the difference.

    This holds for every class of difference in a training case. The script judges nothing.
    """
    status, output = run(script_of(pool, name, case))
    assert status == 0, output
    assert re.match(r"torch \S+, Python \d", output)
    for line in lines:
        assert re.search(rf"(?m)^{line}", output), output


@pytest.mark.parametrize(
    ("name", "case", "lines"),
    [
        ("discrete: indices", SHARDS, [r"epoch 0, rank 1: \[1, 0\]", r"epoch 1, rank 0: \[0, 2\]"]),
        ("rule: SHARD-1", SHARDS, ["length on rank 1: 2"]),
        ("rule: SHARD-6", SHARDS, [r"batches of a DataLoader on rank 0: \[\["]),
        ("discrete: arguments refused", SHARDS, ["rank -1 of 2: ValueError: Invalid rank -1"]),
        (
            "discrete: indices of workers",
            replace(SHARDS, workers=2),
            ["indices of a DataLoader's workers on rank 0: "],
        ),
        (
            "discrete: capability resume",
            None,
            ["a state saved and loaded on rank 0: AttributeError"],
        ),
        ("discrete: warning UserWarning: so", SHARDS, [r"epoch 0, rank 0: \[0, 2\]"]),
        ("discrete: argument drop_last", None, ["default False"]),
        ("discrete: argument gone", None, ["not taken"]),
        ("discrete: argument dataset", None, ["required"]),
    ],
)
def test_a_script_asks_a_sampler_or_a_signature(
    pool: Pool, run: Run, name: str, case: ShardCase | None, lines: list[str]
) -> None:
    """A script asks a sampler or a signature, and an exception is an answer as well."""
    status, output = run(
        script_of(
            pool, name, case, f"torch.utils.data:DistributedSampler({name.rpartition(' ')[2]})"
        )
    )
    assert status == 0, output
    for line in lines:
        assert re.search(rf"(?m)^{line}", output), output


RAISES = '''
from torch.nn.parallel import DistributedDataParallel


class Raises(DistributedDataParallel):
    """On one rank, while the other waits for it."""

    def forward(self, *arguments):
        if self.process_group.rank():
            raise ValueError("no more")
        return super().forward(*arguments)
'''


def test_a_script_tells_a_rank_that_raises_from_one_that_hangs(
    pool: Pool, run: Run, tmp_path: Path
) -> None:
    """A script reports a rank that raises, and ends a rank that hangs."""
    (tmp_path / "raises.py").write_text(RAISES, encoding="utf-8")
    text = script_of(
        pool,
        "discrete: end of the run",
        SMALLEST,
        under_test=(Ddp(f"{tmp_path}/raises.py:Raises"), Sampler()),
    )
    status, output = run(text.replace("PATIENCE = 10", "PATIENCE = 4"))
    assert status == 0
    assert "process 0: it hangs" in output
    assert "rank 1: ValueError: no more" in output


@pytest.mark.parametrize(
    ("name", "case", "why"),
    [
        (
            "discrete: calls that drive it",
            SMALLEST,
            "is about the suite itself, so plain torch cannot show it",
        ),
        ("discrete: capability bucketing", None, "it needs a comparison of several runs"),
        (
            "number: forward",
            replace(SMALLEST, steps=2).with_situation(Actions((BetweenSteps("cast"),))),
            "something happens between steps",
        ),
        (
            "number: forward",
            SMALLEST.with_situation(Perturbed(Perturbation("withheld"))),
            "the case withholds results",
        ),
    ],
)
def test_what_no_script_can_show_is_said(
    pool: Pool, name: str, case: TrainingCase | None, why: str
) -> None:
    """A difference that no script can show is refused with the reason."""
    with pytest.raises(ExportError, match=why):
        script_of(pool, name, case)


def test_a_script_is_run_under_both_and_withheld_where_they_answer_alike(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script is withheld if both interpreters print the same after the version.

    A script that fails or prints no answer is not handed out either, under one interpreter too.
    """
    argument = ShrunkDifference(
        Difference(
            "discrete", "argument a", "torch.nn.parallel:DistributedDataParallel(a)", "x", "y"
        ),
        None,
    )
    outcome = Gated((argument, argument), 3)
    outputs = {"old": "a warning\ntorch 1, Python 3\nsame\n", "new": "torch 2, Python 3\nsame\n"}
    monkeypatch.setattr(question, "ran", lambda _, python: (0, outputs[python]))
    folder = tmp_path / "scripts"
    folder.mkdir()
    written = question.write(folder, outcome, pool, *TORCH, ["old", "new"])
    assert {entry.script for entry in written.differences} == {
        "none: in plain torch both sides give the same answer; only the suite shows the difference"
    }
    assert list(folder.iterdir()) == []
    outputs["new"] = "torch 2, Python 3\nother at 0x7f01\n"
    written = question.write(folder, outcome, pool, *TORCH, ["old", "new"])
    assert [entry.script for entry in written.differences] == [
        str(folder / f"discrete-argument-a{more}.py") for more in ("", "-")
    ]
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(question, "ran", lambda *_: (1, "oh\nTypeError: so\n"))
    written = question.write(folder, outcome, pool, *TORCH, ["new"])
    assert (
        "its script fails: it ended with status 1 and said 'TypeError: so'"
        in written.differences[0].script
    )
    for silent in ("", "torch 2, Python 3\n", "torch 2, Python 3\n \n"):
        monkeypatch.setattr(question, "ran", lambda *_, output=silent: (0, output))
        written = question.write(folder, outcome, pool, *TORCH, ["new"])
        assert written.differences[0].script == "none: its script prints no answer"
    monkeypatch.setattr(question, "ran", lambda *_: (0, "torch 2, Python 3\nso\n"))
    written = question.write(tmp_path / "gone", outcome, pool, *TORCH, ["new"])
    assert "No such file or directory" in written.differences[1].script


def test_a_script_holds_what_a_report_says_as_text_alone(pool: Pool, run: Run) -> None:
    """Text from an exception or from a baseline's file is never run."""
    hostile = '"""\nraise SystemExit(3)\n"""' + "\\N{BULLET}\x00"
    difference = Difference("number", "reduced gradient", hostile, hostile, hostile)
    status, _ = run(question.script(pool, difference, SMALLEST, *TORCH, "it.py"))
    assert status == 0
    where = f"torch.nn.parallel:DistributedDataParallel({hostile})"
    status, output = run(script_of(pool, f"discrete: argument {hostile}", None, where))
    assert (status, output.splitlines()[-1]) == (0, "not taken")
    with pytest.raises(
        ExportError, match="the argument belongs to an implementation with another name here"
    ):
        script_of(pool, "discrete: argument cmd", None, "subprocess:call(cmd)")
