"""Write a stored violation as one script of plain torch that anybody can run, and see it fail before it is handed out.

What is called and how comes from a rank that has loaded what is on trial (`driving.Description.source`, and what a small
run found by name), never from the file: only numbers and texts of it enter the script, as literals.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from ddp_invariants import __version__, draws
from ddp_invariants.case import SENTINEL, ShardCase, TrainingCase, describe
from ddp_invariants.declarations import SHARDED, Declarations, SamplerDeclarations, declare
from ddp_invariants.evidence import ShardEvidence
from ddp_invariants.invariants.shard import CHANCE_FREE, Deal
from ddp_invariants.ranks.pool import Pool
from ddp_invariants.record import StoredViolation
from ddp_invariants.scope import BASE, Scope
from ddp_invariants.source import Calls, frozen, model, samples

MOST_NUMBERS = 4000
"""Parameters and samples a script spells out at most: some 30 KiB, more than anybody pastes."""
CHECK_SECONDS = 90.0
"""Seconds the script gets to show what it claims: importing torch, and its own watchdog of 10."""


class ExportError(ValueError):
    """A violation that cannot be exported: one sentence that says why."""


def script(pool: Pool, stored: StoredViolation) -> str:
    """The script that shows a violation.

    Args:
        pool: Ranks to load what is on trial in, and to find out how it is driven.
        stored: The violation.

    Raises:
        ExportError: It cannot be written as one.
        LoadFailure: What is on trial does not load.
        HarnessError: The harness failed.
    """
    if isinstance(stored.case, ShardCase):
        return _filled("sampler.py.j2", _of_a_sampler(pool, stored, stored.case))
    return _filled("training.py.j2", _of_training(pool, stored, stored.case))


def not_shown(text: str, stored: StoredViolation) -> str:
    """Run a script in a new process, and say why it does not show its violation; empty where it does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "repro.py"
        path.write_text(text, encoding="utf-8")
        here = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        # A session of its own, so that its ranks can be ended with it.
        with subprocess.Popen([sys.executable, str(path)], env=here, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True) as running:
            try:
                said, _ = running.communicate(timeout=CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return f"it did not end within {CHECK_SECONDS:.0f} s"
    if running.returncode == 1 and any(sign in said for sign in _signs(stored)):
        return ""
    last = said.strip().splitlines()[-1:] or ["nothing"]
    return f"it ended with status {running.returncode} and said {last[0][:200]!r}"


def _signs(stored: StoredViolation) -> list[str]:
    """What a script prints when it shows its violation."""
    signs = [f"{stored.breach.rule}: "]
    if stored.breach.rule == "LIVE-1":
        raised = stored.evidence.ranks if stored.evidence is not None else ()
        signs += ["Timeout (0:00:"] if " hung" in stored.breach.fact else []
        signs += [f"{rank.raised['type']}: " for rank in raised if rank.raised is not None and "type" in rank.raised]
    return signs


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """A template with its values, without the imports it does not need."""
    # Imported here: only an export needs it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("ddp_invariants"), trim_blocks=True, lstrip_blocks=True,
                              undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["lit"] = repr
    text = environment.get_template(template).render(values)
    used = [line for line in text.splitlines() if not re.fullmatch(r"import \w+", line)
            or re.search(rf"(?<!import ){line.removeprefix('import ')}\.", text)]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(used)) + "\n"


def _shared(stored: StoredViolation, target: str) -> dict[str, Any]:
    """What both templates begin with."""
    breach, k, n = stored.breach, *stored.confirmed
    fields = {"where": breach.where, "got": breach.got, "perhaps": breach.perhaps, "case": describe(stored.case)}
    lines = [f"    {label:<8} {text}" for label, text in fields.items() if text]
    found = f"Found by ddp-invariants {__version__} with torch {stored.torch}, confirmed in {k} of {n} runs."
    title = f"{breach.rule} violated by {stored.on_trial}: {breach.fact}"
    texts = {"title": title, "story": "\n".join(lines), "versions": found}
    return {**{name: _quoted(text) for name, text in texts.items()}, "target": target, "rule": breach.rule, "case": stored.case}


def _quoted(text: str) -> str:
    """As it may stand in a docstring."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text).replace("\\", "\\\\").replace('"""', "'''")


# Training.


def _of_training(pool: Pool, stored: StoredViolation, case: TrainingCase) -> dict[str, Any]:
    """The values of the template for a training case.

    Raises:
        ExportError: It cannot be written as a script.
    """
    rule, described = stored.breach.rule, pool.describe(stored.ddp)
    declared, source = declare(Declarations, described["declares"]), described["source"]
    reason = _too_much(rule, case, declared, source, stored)
    if reason:
        raise ExportError(f"{rule} of {stored.on_trial} cannot be exported: {reason}")
    driven = _driven(pool, stored, declared)
    if "gradients" in driven:
        raise ExportError(f"{rule} of {stored.on_trial} cannot be exported: its gradients lie in .main_grad, and a script "
                          "would have to lend them to the optimizer as the suite does")
    calls = Calls(case, source, driven)
    never, tagged = case.zero_grad == "never", rule == "LOSS-2"
    checks = _checks(rule, left=never)
    initial, built, forward = model(case)
    twins = [*(["twin"] if checks["twin"] or rule == "LOSS-3" else []), *(["plain"] if checks["trajectory"] else [])]
    looks_back = checks["start"] or checks["frozen"] or checks["trajectory"]
    batches = [[ranks.tolist() for ranks in micro] for micro in draws.batches(case)]
    kinds = {layer.kind for layer in case.model.layers}
    optimizers = {"sgd": "torch.optim.SGD", "adam": "torch.optim.Adam", "adamw": "torch.optim.AdamW"}
    patch = "withheld" if case.perturbation.kind == "withheld" else "sent" if rule == "COMM-1" else ""
    lower = {"float16": "torch.float16", "bfloat16": "torch.bfloat16"}.get(declared.exactness, "")
    return {
        **_shared(stored, described["target"] if stored.ddp.name != "none" else "none"), "processes": case.ranks_needed,
        "patch": patch, "sentinel": repr(SENTINEL) if case.perturbation.sentinel == "finite" else 'float("nan")',
        "adapter": bool(calls.methods), "needs_cap": calls.needs_cap,
        "optimizer_class": optimizers[case.optimizer.kind], "optimizer_arguments": case.optimizer.arguments,
        "adam": case.optimizer.kind != "sgd", "reduction": declared.reduction, "lower": lower, "checks": checks,
        "parts": any(checks[one] for one in ("start", "structure", "equal_gradients", "equal_parameters", "equal_state",
                                             "trajectory", "alone", "frozen")),
        "twins": twins, "looks_back": looks_back, "follows": bool(twins) or looks_back,
        "hidden": declared.gradients == "hidden", "initial": initial, "built": built, "forward": forward, "kinds": kinds,
        "samples": samples(case, {index for micro in batches for ranks in micro for index in ranks}, tagged=tagged),
        "batches": batches, "tags": tagged, "quiet": calls.quiet, "frozen": frozen(case),
        "input_dtype": "torch.float64" if case.model.layers[0].dtype == "float64" else "torch.float32",
        "started": {"INIT-1": ["model.named_parameters()"], "INIT-2": ["model.named_buffers()"]}.get(
            rule, ["model.named_parameters()", "*model.named_buffers()"]),
        "wrapping": calls.wrapping(), "before_step": calls.before_step(), "micro": calls.micro_step(),
        "after_backward": calls.after_backward(), "gradients": calls.gradients(), "stepping": calls.step(),
        "passed_by": [[sorted(case.passed_by(rank, step)) for rank in range(case.world_size)] for step in range(case.steps)]
        if case.unused else [],
        "mishap": case.mishap, "failing": _mishap(case, calls) if case.mishap is not None else [],
        "last_forward": calls.forward() if rule == "LIVE-1" else "",
    }


def _too_much(rule: str, case: TrainingCase, declared: Declarations, source: Mapping[str, Any], stored: StoredViolation) -> str:
    """Why a violation is beyond what a script shows; empty where it is not."""
    numbers = case.data.samples * (case.model.inputs + case.model.widths()[-1])
    numbers += case.world_size * case.model.numbers
    reasons = {
        "what is observed or counted, not compared, is not for a script": rule in (
            "COMM-4", "COMM-5", "COMM-6", "MEM-1"),
        "it is about two runs of the case, or many": rule in ("COMM-2", "LIVE-4"),
        "it is driven through a course's functions": stored.ddp.name.startswith("course:"),
        "its adapter does whole steps by itself (train_step), which leaves no place to look": "train_step" in source["methods"],
        "parameters are sharded, so no rank holds what a script could compare": declared.zero >= SHARDED,
        "only the owner of a parameter holds its gradient": declared.gradients == "owner" and rule.startswith("GRAD"),
        "the optimizer updates a copy of the parameters": bool(declared.main) and rule == "PARAM-3",
        "some ranks do not use a layer, which a script shows of rules about gradients alone":
            bool(case.unused) and rule not in _FOLLOWS_UNUSED,
        "what a forward starts from is seen from inside it": rule == "BUF-1",
        "a no_sync is nested, or left by an exception": case.no_sync != "plain",
        "passes do not alternate, or layers are computed again": case.passes != "alternate" or any(
            layer.checkpoint != "none" for layer in case.model.layers),
        "something happens between steps": bool(case.interludes),
        "a rank is killed in the middle": case.kills,
        "an exception is caught in a step of several micro-steps": case.mishap is not None and case.accumulation > 1,
        "the case repeats the run in the same processes": case.rounds > 1,
        f"it has {numbers:,} numbers, more than the {MOST_NUMBERS:,} a script spells out": numbers > MOST_NUMBERS,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _mishap(case: TrainingCase, calls: Calls) -> list[str]:
    """The attempt at a step in which the user's own exception is raised and caught."""
    assert case.mishap is not None
    tried = [f"    {line}" for line in calls.micro_step()]
    return [*calls.before_step(), f"model.failing = {case.mishap.kind.partition(' ')[0]!r}", "try:",
            "    inputs, *rest = batch(step, rank)", *tried, "    surfaced = False", "except Exception:  # The user's own.",
            "    surfaced = True", 'model.failing = ""']


def _driven(pool: Pool, stored: StoredViolation, declared: Declarations) -> Mapping[str, str]:
    """How it is found to be driven, by a small run.

    Raises:
        ExportError: No small run gets as far.
    """
    scope = Scope(declared=declared, without=frozenset(declared.unsupported))
    own = [stored.case] if isinstance(stored.case, TrainingCase) and stored.breach.rule != "LIVE-1" else []
    for case in (*own, BASE, replace(BASE, world_size=1)):
        evidence = pool.train(scope.fit(case), stored.ddp, fresh=True)
        if evidence.ranks[0].driven:
            return evidence.ranks[0].driven
    raise ExportError(f"{stored.on_trial} cannot be exported: it does not wrap the simplest model, so how it is driven "
                      "cannot be found out")


_FOLLOWS_UNUSED = ("GRAD-1", "GRAD-2", "GRAD-3", "GRAD-5", "GRAD-6", "GRAD-9", "PARAM-1", "PARAM-2", "COMM-1", "LIVE-1")
"""Rules of which a script follows what ranks do not use."""
_MEAN = ("GRAD-2", "GRAD-3", "GRAD-5", "GRAD-6", "GRAD-8", "GRAD-10", "GRAD-12", "LIVE-2")
_CHECKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("INIT-1", "INIT-2", "INIT-4"), ("start",)), "INIT-3": ("structure",),
    **dict.fromkeys(_MEAN, ("twin", "mean", "gradients", "held")), "GRAD-1": ("equal_gradients", "held"),
    "GRAD-9": ("twin", "mean", "gradients", "held", "equal_gradients"), "GRAD-4": ("fit",),
    "GRAD-7": ("twin", "spread", "held"), "LOSS-1": ("twin",), "PARAM-1": ("equal_parameters",), "PARAM-2": ("equal_state",),
    "PARAM-3": ("twin", "plain", "mean", "trajectory"), "PARAM-4": ("plain", "alone"), "PARAM-5": ("frozen",),
}
"""What a script looks at, by rule; the rest is looked at where it happens, or by the watchdog."""


def _checks(rule: str, *, left: bool) -> dict[str, bool]:
    names = {name for group in _CHECKS.values() for name in group}
    chosen = {name: name in _CHECKS.get(rule, ()) for name in names}
    return {**chosen, "left": left and (chosen["gradients"] or chosen["trajectory"])}


# Samplers.


def _of_a_sampler(pool: Pool, stored: StoredViolation, case: ShardCase) -> dict[str, Any]:
    """The values of the template for a question to a sampler.

    Raises:
        ExportError: It cannot be written as a script.
    """
    described = pool.describe(stored.sampler)
    source, declared = described["source"], declare(SamplerDeclarations, described["declares"])
    if source["asks"]:
        raise ExportError(f"{stored.breach.rule} of {stored.on_trial} cannot be exported: it reads its rank from "
                          "torch.distributed or the environment, which one process cannot set up for all ranks")
    total = Deal(ShardEvidence(case, ()), declared).total
    return {**_shared(stored, described["target"]), "data": case.data, "remade": source["remade"], "total": total,
            "padding": declared.padding, "layout": declared.layout, "saves": declared.saves,
            "seeded": any(text == "SEED" for _, text in source["rows"]), "chance_free": CHANCE_FREE,
            "batches": ceil(total // case.world_size / case.data.batch_size),
            "call": ", ".join(f"{name}={text}" for name, text in source["rows"])}
