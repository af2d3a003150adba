"""A difference between two sides as a question: one script of plain torch that prints what its interpreter answers.

Nothing is judged in it. It is run under the interpreters at hand before it is handed out, and
withheld where they answer alike.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, describe
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.probe import QUESTIONS
from ddp_invariants.errors import ExportError, HarnessError, LoadFailure
from ddp_invariants.export.calls import pieces
from ddp_invariants.export.script import (
    beyond,
    called,
    filled,
    how_it_ended,
    quoted,
    ran,
    takes_ranks,
)
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations, declare
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.upgrades.comparison import Difference, steady
from ddp_invariants.upgrades.gate import Gated

_EVERYTHING = ("start", "loss", "reduced", "updated", "state", "buffers")
_TOLD: dict[str, tuple[str, ...]] = {
    "the wrapped module": ("structure",),
    "collectives": ("collectives",),
    "gradients that are None": ("reduced",),
    "gradients' types": ("reduced",),
    "names in a saved state": ("saved",),
    "how the run ends": ("loss",),
    "construction": ("start",),
    "initialisation": ("start",),
    "forward": ("start", "loss", "buffers"),
    "local gradient": ("local",),
    "reduced gradient": ("reduced",),
    "optimizer": ("updated", "state"),
    "INIT": ("start", "structure"),
    "LOSS": ("loss",),
    "GRAD": ("reduced",),
    "PARAM": ("updated", "state"),
    "BUF": ("buffers",),
    "COMM": ("collectives",),
    "LIVE": _EVERYTHING,
    "STATE": ("saved",),
    "RNG": ("loss",),
    "GPU": _EVERYTHING,
    "random numbers": ("loss",),
    "warning": ("warnings",),
    "capability": _EVERYTHING,
}
"""What a script of a training case prints, by what differs: its name, the first word of it, or the invariant of a rule."""
_DEALT: dict[str, tuple[str, ...]] = {
    "how the sampler ends": ("shards",),
    "an exception": ("shards", "lengths", "batches"),
    "arguments refused": ("refused",),
    "indices": ("shards",),
    "lengths": ("lengths",),
    "batches of a DataLoader": ("batches",),
    "what workers yield": ("workers",),
    "what follows a saved state": ("resumed",),
    "SHARD-1": ("shards", "lengths"),
    "SHARD-6": ("batches",),
    "SHARD-7": ("refused",),
    "SHARD-9": ("resumed",),
    "SHARD-10": ("workers",),
    "SHARD": ("shards",),
    "warning": ("shards", "batches", "warnings"),
    "resume": ("resumed",),
    "workers": ("workers",),
    "capability": ("shards", "lengths"),
}
"""The same of a question to a sampler, where a capability may have answers of its own."""


def write(
    folder: Path, outcome: Gated, pool: Pool, ddp: Ddp, sampler: Sampler, pythons: Sequence[str]
) -> Gated:
    """Write a script of every difference that a script can show, and say why not of the others: nothing that was found is lost.

    Args:
        folder: Where to.
        outcome: What differs.
        pool: Ranks of one side, to find out how what is on trial is called.
        ddp: The DDP.
        sampler: The sampler.
        pythons: The interpreters at hand, one or two.

    Returns:
        The outcome, with each difference's script.
    """
    told, taken = [], set[str]()
    for found in outcome.found:
        name = re.sub(r"\W+", "-", found.difference.name).strip("-")[:60]
        while name in taken:
            name += "-"
        taken.add(name)
        path = folder / f"{name}.py"
        try:
            text = script(pool, found.difference, found.case, ddp, sampler, path.name)
            reason = _not_answered(text, pythons)
            if not reason:
                path.write_text(text, encoding="utf-8")
        except (ExportError, LoadFailure, HarnessError, OSError) as error:
            reason = str(error)
        told.append(replace(found, script=f"none: {reason}" if reason else str(path)))
    return replace(outcome, found=tuple(told))


def script(
    pool: Pool, difference: Difference, case: Case | None, ddp: Ddp, sampler: Sampler, file: str
) -> str:
    """The script that prints what differs, whoever runs it.

    Args:
        pool: Ranks to find out in how what is on trial is called.
        difference: What differs.
        case: In which case; None where it shows before any is run.
        ddp: The DDP.
        sampler: The sampler.
        file: What it will be called.

    Raises:
        ExportError: It cannot be written as one: a sentence that says why.
    """
    word, _, rest = difference.what.partition(" ")
    lines = {"where": difference.where, "old": difference.old, "new": difference.new}
    lines |= {"case": describe(case)} if case is not None else {}
    values = {
        "title": f"What an interpreter answers, of: {difference.name}",
        "file": file,
        "rule": "",
        "story": "\n".join(f"    {label:<8} {text}" for label, text in lines.items() if text),
        "versions": f"Written by ddp-invariants {__version__} compare, of {' '.join(filter(None, map(str, (ddp, sampler))))}.",
    }
    values = {name: quoted(text) for name, text in values.items()}
    if word == "argument":
        # What is loaded is what is on trial here, whatever a baseline says it was there.
        targets = [pool.describe(one)["target"] for one in (ddp, sampler)]
        target = next((one for one in targets if difference.where == f"{one}({rest})"), "")
        if not target:
            raise ExportError("it is an argument of what has another name here")
        return filled("answer_argument.py.j2", {**values, "target": target, "argument": rest})
    if word == "capability":
        case = QUESTIONS.get(rest) or (TRAINING[rest].probe if rest in TRAINING else None)
    if case is None:
        raise ExportError("it is seen by comparing several runs")
    if isinstance(case, ShardCase):
        return filled(
            "answer_sampler.py.j2", {**values, **_of_a_sampler(pool, difference, case, sampler)}
        )
    return filled("answer_training.py.j2", {**values, **_of_training(pool, difference, case, ddp)})


def _shown(difference: Difference, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What a script prints of a difference.

    Raises:
        ExportError: Nothing that a script could print.
    """
    word, _, rest = difference.what.partition(" ")
    for name in (difference.what, rest, word, word.partition("-")[0]):
        if name in known:
            return known[name]
    raise ExportError(
        f"what is asked of {difference.what!r} is the suite's own, and no matter of plain torch"
    )


def _of_training(
    pool: Pool, difference: Difference, case: TrainingCase, ddp: Ddp
) -> dict[str, Any]:
    shows, described = _shown(difference, _TOLD), pool.describe(ddp)
    declared, source = declare(Declarations, described["declares"]), described["source"]
    if shows == (
        "saved",
    ):  # Whether it is saved between steps or after wrapping, its names are those of the wrapper.
        case = replace(case, between_steps=())
    reason = beyond(case, declared, source, ddp)
    calls = reason or called(pool, case, case, ddp, declared, source)
    if isinstance(calls, str):
        raise ExportError(calls)
    if case.perturbation.kind not in ("none", "late"):
        raise ExportError("results are withheld in it, which plain torch does not do")
    target = described["target"] if ddp.name != "none" else "none"
    return {
        **pieces(case, calls, tagged=case.loss != "mse"),
        "target": target,
        "case": case,
        "shows": shows,
        "patch": "",
        "checks": {"mean": False},
        "reduction": declared.reduction,
        "last_forward": calls.forward(),
    }


def _of_a_sampler(
    pool: Pool, difference: Difference, case: ShardCase, sampler: Sampler
) -> dict[str, Any]:
    shows, described = _shown(difference, _DEALT), pool.describe(sampler)
    source, declared = described["source"], declare(SamplerDeclarations, described["declares"])
    if source["asks"]:
        raise ExportError(f"the sampler {takes_ranks(declared)}")
    rule = "SHARD-9" if "resumed" in shows else "SHARD-10" if "workers" in shows else ""
    return {
        "target": described["target"],
        "case": case,
        "data": case.data,
        "shows": shows,
        "remade": source["remade"],
        "saves": declared.saves,
        "rule": rule,
        "call": ", ".join(f"{name}={text}" for name, text in source["rows"]),
    }


def _not_answered(text: str, pythons: Sequence[str]) -> str:
    """Run a script under the interpreters at hand, and say why it does not show that they differ; empty where it does."""
    answers = []
    for python in pythons:
        status, said = ran(text, python)
        if status != 0:
            return f"the script of it fails: {how_it_ended(status, said)}"
        answers.append(steady(said.partition(", Python ")[2].partition("\n")[2]))
    if len(answers) > 1 and answers[0] == answers[1]:
        return "in plain torch both answer alike, so it takes the suite to see it"
    return ""
