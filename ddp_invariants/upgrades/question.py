"""A difference between two sides as a script of plain torch that prints an interpreter's answer.

The script judges nothing. It is run under the available interpreters before it is handed out. It is
withheld if it prints no answer, or if two interpreters answer alike. A baseline leaves one interpreter,
so nothing shows that plain torch answers differently under the recorded one.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.cases.case import Case, ShardCase, TrainingCase, describe
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.sampler_probe import SAMPLER_CASES
from ddp_invariants.errors import ExportError, HarnessError, LoadFailure
from ddp_invariants.export.calls import pieces
from ddp_invariants.export.running import how_it_ended, ran
from ddp_invariants.export.script import beyond, calls_of, filled, quoted, takes_ranks
from ddp_invariants.implementation.declarations import Declarations, SamplerDeclarations, declare
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.upgrades.difference import Difference, steady
from ddp_invariants.upgrades.outcome import Gated

_EVERYTHING = ("start", "loss", "reduced", "updated", "state", "buffers")
_TRAINING_PARTS: dict[str, tuple[str, ...]] = {
    "the wrapped module": ("structure",),
    "collectives": ("collectives",),
    "gradients that are None": ("reduced",),
    "gradients' types": ("reduced",),
    "names in a saved state": ("saved",),
    "end of the run": ("loss",),
    "construction": ("start",),
    "initialisation": ("start",),
    "forward": ("start", "loss"),
    "buffers": ("buffers",),
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
"""The parts that a training script prints, by the difference.

A key is the name of the difference, its first word, or the invariant of a rule.
"""
_SAMPLER_PARTS: dict[str, tuple[str, ...]] = {
    "end of the sampler": ("shards",),
    "an exception": ("shards", "lengths", "batches"),
    "arguments refused": ("refused",),
    "indices": ("shards",),
    "lengths": ("lengths",),
    "batches of a DataLoader": ("batches",),
    "indices of workers": ("workers",),
    "indices after a saved state": ("resumed",),
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
"""The parts that a sampler script prints, by the difference; a capability may have its own."""


def write(
    folder: Path, outcome: Gated, pool: Pool, ddp: Ddp, sampler: Sampler, pythons: Sequence[str]
) -> Gated:
    """Write a script for every difference, or record the reason why there is none.

    Every difference stays in the outcome.

    Args:
        folder: The folder to write to.
        outcome: The differences.
        pool: Ranks of one side; they describe how the implementation under test is called.
        ddp: The DDP.
        sampler: The sampler.
        pythons: The available interpreters, one or two.

    Returns:
        The outcome, with each difference's script.
    """
    scripted, taken = [], set[str]()
    for entry in outcome.differences:
        name = re.sub(r"\W+", "-", entry.difference.name).strip("-")[:60]
        while name in taken:
            name += "-"
        taken.add(name)
        path = folder / f"{name}.py"
        try:
            text = script(pool, entry.difference, entry.case, ddp, sampler, path.name)
            reason = _why_withheld(text, pythons)
            if not reason:
                path.write_text(text, encoding="utf-8")
        except (ExportError, LoadFailure, HarnessError, OSError) as error:
            reason = str(error)
        scripted.append(replace(entry, script=f"none: {reason}" if reason else str(path)))
    return replace(outcome, differences=tuple(scripted))


def script(
    pool: Pool, difference: Difference, case: Case | None, ddp: Ddp, sampler: Sampler, file: str
) -> str:
    """Return the script that prints the differing answer of the interpreter that runs it.

    Args:
        pool: Ranks that describe how the implementation under test is called.
        difference: The difference.
        case: The case with the difference; None if it shows before any case is run.
        ddp: The DDP.
        sampler: The sampler.
        file: The name of the script.

    Raises:
        ExportError: No such script can be written; the message is a sentence with the reason.
    """
    word, _, rest = difference.subject.partition(" ")
    lines = {"where": difference.where, "old": difference.old, "new": difference.new}
    lines |= {"case": describe(case)} if case is not None else {}
    values = {
        "title": f"The answer of an interpreter to: {difference.name}",
        "file": file,
        "rule": "",
        "story": "\n".join(f"    {label:<8} {text}" for label, text in lines.items() if text),
        "versions": (
            f"Written by ddp-invariants {__version__} compare, for "
            f"{' '.join(filter(None, map(str, (ddp, sampler))))}."
        ),
    }
    values = {name: quoted(text) for name, text in values.items()}
    if word == "argument":
        # The script loads the implementation under test of this side; a baseline may name another.
        targets = [pool.describe(tested)["target"] for tested in (ddp, sampler)]
        target = next((name for name in targets if difference.where == f"{name}({rest})"), "")
        if not target:
            raise ExportError("the argument belongs to an implementation with another name here")
        return filled("answer_argument.py.j2", {**values, "target": target, "argument": rest})
    if word == "capability":
        case = SAMPLER_CASES.get(rest) or (TRAINING[rest].probe if rest in TRAINING else None)
    if word == "surface":
        raise ExportError("one line of Python shows it, and no case")
    if case is None:
        raise ExportError("it needs a comparison of several runs")
    if isinstance(case, ShardCase):
        return filled(
            "answer_sampler.py.j2", {**values, **_of_a_sampler(pool, difference, case, sampler)}
        )
    shows = _shown(difference, _TRAINING_PARTS)
    return filled("answer_training.py.j2", {**values, **_of_training(pool, shows, case, ddp)})


def _shown(difference: Difference, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the parts that a script prints for a difference.

    Raises:
        ExportError: A script has nothing to print.
    """
    word, _, rest = difference.subject.partition(" ")
    for name in (difference.subject, rest, word, word.partition("-")[0]):
        if name in known:
            return known[name]
    raise ExportError(
        f"{difference.subject!r} is about the suite itself, so plain torch cannot show it"
    )


def answering(pool: Pool, shows: tuple[str, ...], case: TrainingCase, ddp: Ddp) -> str:
    """Return a script that runs a training case and prints some parts of it.

    Args:
        pool: Ranks that describe how the implementation under test is called.
        shows: The parts.
        case: The case.
        ddp: The implementation under test.

    Raises:
        ExportError: No such script can be written.
    """
    texts = {
        "title": "A case in plain torch",
        "file": "answer.py",
        "rule": "",
        "story": quoted(describe(case)),
        "versions": f"Written by ddp-invariants {__version__}.",
    }
    return filled("answer_training.py.j2", {**texts, **_of_training(pool, shows, case, ddp)})


def _of_training(
    pool: Pool, shows: tuple[str, ...], case: TrainingCase, ddp: Ddp
) -> dict[str, Any]:
    described = pool.describe(ddp)
    declared, source = declare(Declarations, described["declares"]), described["source"]
    # The names in a saved state are the wrapper's, both between steps and right after wrapping.
    if shows == ("saved",):
        case = case.without(Actions)
    reason = beyond(case, declared, source, ddp)
    calls = reason or calls_of(pool, case, case, ddp, declared, source)
    if isinstance(calls, str):
        raise ExportError(calls)
    if case.perturbation.kind not in ("none", "late"):
        raise ExportError("the case withholds results, which plain torch does not do")
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
    shows, described = _shown(difference, _SAMPLER_PARTS), pool.describe(sampler)
    source, declared = described["source"], declare(SamplerDeclarations, described["declares"])
    if source["asks"]:
        raise ExportError(f"the sampler {takes_ranks(declared)}")
    return {
        "target": described["target"],
        "case": case,
        "data": case.data,
        "shows": shows,
        "remade": source["remade"],
        "counted": source["counted"],
        "saves": declared.saves,
        "checks": {"resumption": "resumed" in shows, "workers": "workers" in shows},
        "call": ", ".join(f"{name}={text}" for name, text in source["rows"]),
    }


def _why_withheld(text: str, pythons: Sequence[str]) -> str:
    """Run a script under the available interpreters and return why it must be withheld.

    The result is empty if the script answers under each interpreter, and two answers differ.
    """
    answers = []
    for python in pythons:
        status, output = ran(text, python)
        if status != 0:
            return f"its script fails: {how_it_ended(status, output)}"
        answer = steady(output.partition(", Python ")[2].partition("\n")[2])
        if not answer.strip():
            return "its script prints no answer"
        answers.append(answer)
    if len(answers) > 1 and answers[0] == answers[1]:
        return "in plain torch both sides give the same answer; only the suite shows the difference"
    return ""
