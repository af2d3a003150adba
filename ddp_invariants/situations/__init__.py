"""The situations of training runs: one module for each thing that may happen besides plain training.

A module says all that the controller needs: the fields of the situation and what excludes it, how it
is drawn, made simpler, probed, counted and written as a script. To add a situation, add its module
and its class to `SITUATIONS`.

Standard library only: the rank side imports this package under any interpreter.
"""

from typing import Any

from ddp_invariants.cases.case import KINDS, Case, ShardCase, Situation, TrainingCase, register
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    Data,
    Exhausted,
    InjectedFailure,
    Optimizer,
    Perturbation,
    Poison,
    Unused,
)
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.scaling import Scaling

SITUATIONS: tuple[type[Situation], ...] = (Penalty, Clipping, Scaling, Autocast)
"""The classes of situations, in the order in which a case lists, checks and prints them."""

register(*SITUATIONS)


def from_plain(plain: dict[str, Any]) -> Case:
    """Build a case from what `to_json` wrote, without checking types.

    For frames between our own processes.

    Raises:
        CaseError: A field holds a value outside its range.
    """
    if plain["kind"] == "shard":
        return ShardCase(
            **{**plain, "data": Data(**plain["data"]), "epochs": tuple(plain["epochs"])}
        )
    layers = tuple(Layer(**layer) for layer in plain["model"]["layers"])
    poison = plain["poison"] and Poison(**plain["poison"])
    injected_failure = plain["injected_failure"] and InjectedFailure(**plain["injected_failure"])
    return TrainingCase(
        **{
            **plain,
            "model": Model(plain["model"]["inputs"], layers),
            "data": Data(**plain["data"]),
            "unused": tuple(Unused(**one) for one in plain["unused"]),
            "between_steps": tuple(BetweenSteps(**one) for one in plain["between_steps"]),
            "exhausted": tuple(Exhausted(**one) for one in plain["exhausted"]),
            "optimizer": Optimizer(**plain["optimizer"]),
            "poison": poison,
            "injected_failure": injected_failure,
            "perturbation": Perturbation(**plain["perturbation"]),
            "situations": tuple(_situation(one) for one in plain["situations"]),
        }
    )


def _situation(plain: dict[str, Any]) -> Situation:
    """Build a situation from its JSON form.

    Raises:
        CaseError: Its kind is unknown, or a field holds a value outside its range.
    """
    kind = plain.get("kind")
    require(kind in KINDS, "kind", kind, "one of " + ", ".join(map(repr, KINDS)))
    fields = {name: value for name, value in plain.items() if name != "kind"}
    return KINDS[str(kind)].from_plain(fields)
