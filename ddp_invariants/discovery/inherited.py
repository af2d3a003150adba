"""Deviations that an implementation inherits from the known wrapper that it is built on.

A subclass of torch's DDP, or a wrapper around it, shares torch's known deviations. The excuse covers
only what the known wrapper shows: both run the same probe, and both must fail by the same rule, in
the same place and with the same numbers. Otherwise the implementation's own code is at fault.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.discovery.deviations import expected
from ddp_invariants.discovery.result import Probed, Standing, first_failure
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.discovery.unsettled import case_of
from ddp_invariants.implementation.names import BUILT_ON
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.processes.pool import Pool


def relatives(pool: Pool, ddp: Ddp, driven: Mapping[str, str]) -> tuple[Ddp, ...]:
    """Return the known wrappers that an implementation is built on, with its arguments.

    An argument that the known wrapper does not take is left out.

    Args:
        pool: Ranks that load the known wrappers.
        ddp: The implementation.
        driven: How it is driven, with the known wrappers that a rank met in the wrapped model.
    """
    names = [name for name in driven.get(BUILT_ON, "").split(", ") if name]
    return tuple(
        Ddp(name, tuple(item for item in ddp.arguments if item[0] in taken))
        for name in names
        for taken in [pool.describe(Ddp(name))["defaults"]]
    )


def inherited(
    pool: Pool,
    under_test: tuple[Ddp, Sequence[Ddp]],
    scope: Scope,
    probed: Iterable[Probed],
    torch: str,
    files: Sequence[Path] = (),
) -> dict[str, str]:
    """Return the capabilities that are wrong just as in a relative, each with the reason.

    Args:
        pool: Ranks to probe on.
        under_test: The implementation and its relatives.
        scope: The scope of its probes.
        probed: The results of its probes.
        torch: The version of torch in the ranks.
        files: Of expected deviations, beside the shipped file.

    Raises:
        DeviationError: One of these files cannot be used.
    """
    wrong = {item.capability: item for item in probed if item.standing is Standing.WRONG}
    ddp, known = under_test
    return {
        deviation.capability: f"as in {relative}, which it is built on; {deviation}"
        for relative in known
        for deviation in expected(relative, torch, files)
        if deviation.capability in wrong
        and (shown := _shown(pool, ddp, scope, wrong[deviation.capability])) is not None
        and shown == _shown(pool, relative, scope, wrong[deviation.capability])
    }


def _shown(pool: Pool, ddp: Ddp, scope: Scope, probed: Probed) -> tuple[str, str, str, str] | None:
    """Return the rule, fact, place and numbers of the failure that a capability's probe shows.

    An update of its own gives other numbers than the relative's SGD, so that they are left out.
    """
    case = case_of(probed, scope)
    assert isinstance(case, TrainingCase)
    within = replace(scope, without=scope.without - {probed.capability})
    failure = first_failure(pool.train(case, ddp), within)
    if failure is None:
        return None
    numbers = "" if scope.declared.update == "own" else failure.got
    return failure.rule, failure.fact, failure.where, numbers
