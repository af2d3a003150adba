"""The export of a stored violation as one script of plain torch that anybody can run.

The script must show the violation once before it is handed out. A rank that has loaded the
implementation under test says which calls the script makes (`ranks.driving.ddp.Description.source`, and the
methods that a small run found by name). The violation's file never says so: only numbers and
texts of the file enter the script, as literals.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from ddp_invariants import __version__
from ddp_invariants.cases.case import ShardCase, TrainingCase, describe
from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.cases.shard_case import CHANCE_FREE
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import ExportError
from ddp_invariants.export.calls import Calls, frozen, pieces
from ddp_invariants.implementation.declarations import (
    SHARDED,
    Declarations,
    SamplerDeclarations,
    declare,
)
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.dealing import BATCHES, total_of
from ddp_invariants.invariants.live import ENDS
from ddp_invariants.invariants.loss import DISPLACED
from ddp_invariants.invariants.rule import Script, invariant_of
from ddp_invariants.processes.pool import Pool
from ddp_invariants.records.violation import StoredViolation
from ddp_invariants.situations.capability import BASE

MOST_NUMBERS = 4000
"""The most parameters and samples a script writes out: about 30 KiB, more than anybody pastes."""


def script(pool: Pool, stored: StoredViolation) -> str:
    """Return the script that shows a violation.

    Args:
        pool: The ranks that load the implementation under test and find out how it is driven.
        stored: The violation.

    Raises:
        ExportError: No script can show the violation.
        LoadFailure: The implementation under test does not load.
        HarnessError: The harness failed.
    """
    if isinstance(stored.case, ShardCase):
        return filled("sampler.py.j2", _of_a_sampler(pool, stored, stored.case))
    return filled("training.py.j2", _of_training(pool, stored, stored.case))


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a template filled with values, without the imports that the text does not use."""
    # Imported here: only an export needs Jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ddp_invariants.export"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["lit"] = repr
    text = environment.get_template(template).render(values)
    used = [
        line
        for line in text.splitlines()
        if not re.fullmatch(r"import \w+", line)
        or re.search(rf"(?<!import ){line.removeprefix('import ')}\.", text)
    ]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(used)) + "\n"


def _shared(stored: StoredViolation, target: str) -> dict[str, Any]:
    """Return the values that both templates begin with."""
    failure, k, n = stored.failure, *stored.confirmed
    fields = {
        "where": failure.where,
        "got": failure.got,
        "perhaps": failure.probable_cause(stored.confirmed),
        "case": describe(stored.case),
    }
    lines = [f"    {label:<8} {text}" for label, text in fields.items() if text]
    versions = (
        f"Found by ddp-invariants {__version__} with torch {stored.torch}, "
        f"confirmed in {k} of {n} runs."
    )
    title = f"{failure.rule} violated by {stored.under_test}: {failure.fact}"
    texts = {"title": title, "story": "\n".join(lines), "versions": versions}
    return {
        **{name: quoted(text) for name, text in texts.items()},
        "target": target,
        "rule": failure.rule,
        "case": stored.case,
    }


def quoted(text: str) -> str:
    """Return a text, changed so that it can stand in a docstring."""
    return (
        "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
        .replace("\\", "\\\\")
        .replace('"""', "'''")
    )


# Training.


def _of_training(pool: Pool, stored: StoredViolation, case: TrainingCase) -> dict[str, Any]:
    """Return the values of the template for a training case.

    Raises:
        ExportError: It cannot be written as a script.
    """
    rule, described = stored.failure.rule, pool.describe(stored.ddp)
    declared, source = declare(Declarations, described["declares"]), described["source"]
    reason = _too_much(rule, case, declared, source, stored)
    if reason:
        raise ExportError(f"{rule} of {stored.under_test} cannot be exported: {reason}")
    calls = calls_of(pool, None if rule == ENDS else case, case, stored.ddp, declared, source)
    if isinstance(calls, str):
        raise ExportError(f"{rule} of {stored.under_test} cannot be exported: {calls}")
    checks = _checks(rule, left=case.zero_grad == "never")
    twins = [
        *(["twin"] if checks["twin"] or checks["mean_loss"] else []),
        *(["plain"] if checks["trajectory"] else []),
    ]
    looks_back = checks["start"] or checks["frozen"] or checks["trajectory"]
    withheld = case.perturbation.kind == "withheld"
    lower = {"float16": "torch.float16", "bfloat16": "torch.bfloat16"}.get(declared.exactness, "")
    return {
        **_shared(stored, described["target"] if stored.ddp.name != "none" else "none"),
        **pieces(case, calls, tagged=checks["losses_differ"]),
        "patch": "withheld" if withheld else "sent" if checks["sent"] else "",
        "sentinel": repr(SENTINEL) if case.perturbation.sentinel == "finite" else 'float("nan")',
        "adam": case.optimizer.kind != "sgd",
        "reduction": declared.reduction,
        "lower": lower,
        "checks": checks,
        "parts": any(
            checks[name]
            for name in (
                "start",
                "structure",
                "equal_gradients",
                "equal_parameters",
                "equal_state",
                "trajectory",
                "alone",
                "frozen",
                "skips",
            )
        ),
        "twins": twins,
        "looks_back": looks_back,
        "follows": bool(twins) or looks_back,
        "hidden": declared.gradients == "hidden",
        "frozen": frozen(case),
        "started": _started(checks),
        "last_forward": calls.forward() if checks["last_forward"] else "",
    }


def _too_much(
    rule: str,
    case: TrainingCase,
    declared: Declarations,
    source: Mapping[str, Any],
    stored: StoredViolation,
) -> str:
    """Return why a script cannot show a violation; empty if it can."""
    shown = _shown_by(rule)
    reasons = {
        shown.beyond: bool(shown.beyond),
        "only the owner of a parameter holds its gradient": declared.gradients == "owner"
        and invariant_of(rule) == "GRAD",
        "the optimizer updates a copy of the parameters": bool(declared.main)
        and not shown.follows_main,
        "some ranks do not use a layer, and a script then shows rules about gradients only": bool(
            case.unused
        )
        and not shown.follows_unused,
        "layers draw random numbers, which no other batch repeats": bool(case.draws)
        and not shown.follows_dropout,
        "the wrapper changes random numbers, which the script gives to the twin as well": (
            stored.failure.fact == DISPLACED
        ),
        "a loss is scaled, and a script then shows only rules about skipped steps, or about equal "
        "values on all ranks": case.scaler is not None
        and (
            not shown.follows_scaler
            or stored.failure.fact.startswith(("with a loss scaler", "the loss scale"))
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "") or beyond(
        case, declared, source, stored.ddp
    )


def beyond(case: TrainingCase, declared: Declarations, source: Mapping[str, Any], ddp: Ddp) -> str:
    """Return why a script cannot run a case, for any rule; empty if it can."""
    numbers = (
        case.data.samples * (case.model.inputs + case.model.widths()[-1])
        + case.world_size * case.model.numbers
    )
    reasons = {
        "it is driven through a course's functions": ddp.name.startswith("course:"),
        "its adapter does whole steps by itself (train_step), so a script cannot look into "
        "a step": "train_step" in source["methods"],
        "parameters are sharded, so no rank holds what a script could compare": declared.zero
        >= SHARDED,
        "passes do not alternate, or layers are computed again": any(
            layer.checkpoint != "none" or layer.twice for layer in case.model.layers
        ),
        **{reason: True for each in case.situations if (reason := each.unscripted(case))},
        "the case repeats the run in the same processes": case.rounds > 1,
        f"it has {numbers:,} numbers, more than the {MOST_NUMBERS:,} a script spells out": numbers
        > MOST_NUMBERS,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def calls_of(
    pool: Pool,
    known: TrainingCase | None,
    case: TrainingCase,
    ddp: Ddp,
    declared: Declarations,
    source: Mapping[str, Any],
) -> Calls | str:
    """Return the calls around a step of a case, or the reason why a script cannot make them.

    A small run finds out which methods of the wrapper are called by name.

    Args:
        pool: The ranks that do the small run.
        known: A case that reaches its first step; None if none is known.
        case: The case.
        ddp: The implementation under test.
        declared: Its declarations.
        source: `ranks.driving.ddp.Description.source` of the implementation.
    """
    scope = Scope(declared=declared, without=frozenset(declared.unsupported))
    for tried in (*([] if known is None else [known]), BASE, replace(BASE, world_size=1)):
        driven = pool.train(scope.fit(tried), ddp, fresh=True).ranks[0].driven
        if driven:
            return (
                "its gradients lie in .main_grad, and a script would have to lend them to the "
                "optimizer as the suite does"
                if "gradients" in driven
                else Calls(case, source, driven)
            )
    return "it does not wrap the simplest model, so how it is driven cannot be found out"


def _shown_by(rule: str) -> Script:
    """Return how a script shows a rule's failure; the default for a rule that is not loaded."""
    return ALL_RULES[rule].script if rule in ALL_RULES else Script()


def _checks(rule: str, *, left: bool) -> dict[str, bool]:
    """Return which of the template's checks a script makes."""
    names = {name for row in ALL_RULES.values() for name in row.script.checks}
    chosen = {name: name in _shown_by(rule).checks for name in names}
    return {**chosen, "left": left and (chosen["gradients"] or chosen["trajectory"])}


def _started(checks: Mapping[str, bool]) -> list[str]:
    """Return the tensors that a script compares when the first forward starts."""
    parameters, buffers = "model.named_parameters()", "model.named_buffers()"
    if checks["started_parameters"]:
        return [parameters]
    return [buffers] if checks["started_buffers"] else [parameters, f"*{buffers}"]


# Samplers.


def takes_ranks(declared: SamplerDeclarations) -> str:
    """Return why a single process cannot ask a sampler for all ranks' shards.

    The sampler is not given its rank as an argument.
    """
    how = (
        "scatters"
        if declared.layout == "scatter"
        else "reads its rank from torch.distributed or the environment"
    )
    return f"{how}, which one process cannot set up for all ranks"


def _of_a_sampler(pool: Pool, stored: StoredViolation, case: ShardCase) -> dict[str, Any]:
    """Return the values of the template for a sampler's case.

    Raises:
        ExportError: It cannot be written as a script.
    """
    described = pool.describe(stored.sampler)
    source, declared = described["source"], declare(SamplerDeclarations, described["declares"])
    if source["asks"]:
        raise ExportError(
            f"{stored.failure.rule} of {stored.under_test} cannot be exported: "
            f"it {takes_ranks(declared)}"
        )
    if case.resumed_by is not None:
        raise ExportError(
            f"{stored.failure.rule} of {stored.under_test} cannot be exported: "
            "ranks of another number load its state"
        )
    if case.situations:
        raise ExportError(
            f"{stored.failure.rule} of {stored.under_test} cannot be exported: "
            f"{case.situations[0].beyond_scripts}"
        )
    if declared.padding in ("endless", "own"):
        raise ExportError(
            f"{stored.failure.rule} of {stored.under_test} cannot be exported: a script judges no "
            f"sampler that declares padding = {declared.padding!r}"
        )
    total = total_of(case, declared.padding)
    whole = source["batches"] and declared.padding == "wrap" and case.data.drop_last
    return {
        **_shared(stored, described["target"]),
        "checks": _checks(stored.failure.rule, left=False),
        "data": case.data,
        "remade": source["remade"],
        "counted": source["counted"],
        "total": total,
        "totals": sorted({total, *(total_of(case, fit) for fit in BATCHES if whole)}),
        "repeats": -case.data.samples % case.world_size if whole else 0,
        "padding": declared.padding,
        "layout": declared.layout,
        "saves": declared.saves,
        "seeded": source["seeded"],
        "chance_free": CHANCE_FREE,
        "sized": not whole and any("BATCH_SIZE" in text for _, text in source["rows"]),
        "batches": ceil(total // case.world_size / case.data.batch_size),
        "call": ", ".join(f"{name}={text}" if name else text for name, text in source["rows"]),
    }
