"""Cases built from their JSON form, which a frame between the suite's own processes holds.

Standard library only: the rank side imports this module under any interpreter.
"""

from typing import Any

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.shard_situation import ASKING, ShardSituation
from ddp_invariants.cases.situation import KINDS, Situation


def from_plain(plain: dict[str, Any]) -> Case:
    """Build a case from what `to_json` wrote, without checking types.

    The JSON form comes from a frame between the suite's own processes.

    Raises:
        CaseError: A field holds a value outside its range.
    """
    if plain["kind"] == "shard":
        return ShardCase(
            **{
                **plain,
                "data": Data(**plain["data"]),
                "epochs": tuple(plain["epochs"]),
                "situations": tuple(_asking(each) for each in plain["situations"]),
            }
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


def _asking(plain: dict[str, Any]) -> ShardSituation:
    """Build a way to ask a sampler from its JSON form.

    Raises:
        CaseError: Its kind is unknown, or a field holds a value outside its range.
    """
    kind = plain.get("kind")
    require(kind in ASKING, "kind", kind, "one of " + ", ".join(map(repr, ASKING)))
    return ASKING[str(kind)].from_plain(
        {name: value for name, value in plain.items() if name != "kind"}
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
