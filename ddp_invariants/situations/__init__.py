"""The situations of training runs: one module for each event besides plain training.

A module says all that the controller needs: the fields of the situation, the cases that exclude
it, and how it is drawn, made simpler, probed, counted and written as a script. To add a situation,
add its module, and its class to `SITUATIONS`.

Standard library only: the rank side imports this package under any interpreter.
"""

from typing import Any

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.situation import KINDS, Situation, register
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.between_steps import Actions
from ddp_invariants.situations.call_shape import CallShape
from ddp_invariants.situations.clipping import Clipping
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.injected_failure import FailureInjection
from ddp_invariants.situations.module_use import ModuleUse
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.perturbation import Perturbed
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.resized import Resized
from ddp_invariants.situations.scaler import Scaler
from ddp_invariants.situations.schedule import RateSchedule
from ddp_invariants.situations.second import SecondWrapper
from ddp_invariants.situations.turns import Turns
from ddp_invariants.situations.uneven import UnevenInputs
from ddp_invariants.situations.unused import UnusedLayers

SITUATIONS: tuple[type[Situation], ...] = (
    Poisoned,
    Perturbed,
    FailureInjection,
    NoSyncStyle,
    UnusedLayers,
    Crossed,
    PassOrder,
    Penalty,
    Actions,
    UnevenInputs,
    Resized,
    Clipping,
    Scaler,
    Autocast,
    RateSchedule,
    CallShape,
    ModuleUse,
    SecondWrapper,
    Turns,
)
"""The classes of situations, in the order in which a case lists, checks and prints them."""

OPTIONS: dict[str, Any] = {
    name: default for kind in SITUATIONS for name, default in kind.options.items()
}
"""The options of all situations by name, with their defaults.

The options belong to `search.strategies.training_cases`, and a rule's row states them (`Draws`).
"""

register(*SITUATIONS)


def from_plain(plain: dict[str, Any]) -> Case:
    """Build a case from what `to_json` wrote, without checking types.

    The JSON form comes from a frame between the suite's own processes.

    Raises:
        CaseError: A field holds a value outside its range.
    """
    if plain["kind"] == "shard":
        return ShardCase(
            **{**plain, "data": Data(**plain["data"]), "epochs": tuple(plain["epochs"])}
        )
    layers = tuple(Layer(**layer) for layer in plain["model"]["layers"])
    return TrainingCase(
        **{
            **plain,
            "model": Model(plain["model"]["inputs"], layers),
            "data": Data(**plain["data"]),
            "optimizer": Optimizer(**plain["optimizer"]),
            "situations": tuple(_situation(each) for each in plain["situations"]),
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
