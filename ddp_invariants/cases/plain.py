"""Cases built from their JSON form, which a frame between the suite's own processes holds.

Standard library only: the rank side imports this module under any interpreter.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from ddp_invariants.cases.case import Case, ShardCase, TrainingCase
from ddp_invariants.cases.fields import require
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.cases.shard_situation import ASKING, ShardSituation
from ddp_invariants.cases.situation import KINDS, Situation

Kind = TypeVar("Kind", Situation, ShardSituation)


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
                "situations": tuple(_of_kind(each, ASKING) for each in plain["situations"]),
            }
        )
    model = plain["model"]
    layers = tuple(Layer(**layer) for layer in model["layers"])
    return TrainingCase(
        **{
            **plain,
            "model": Model(**{**model, "layers": layers}),
            "data": Data(**plain["data"]),
            "optimizer": Optimizer(**plain["optimizer"]),
            "situations": tuple(_of_kind(each, KINDS) for each in plain["situations"]),
        }
    )


def _of_kind(plain: dict[str, Any], kinds: Mapping[str, type[Kind]]) -> Kind:
    """Build a situation from its JSON form, by its kind.

    Raises:
        CaseError: Its kind is unknown, or a field holds a value outside its range.
    """
    kind = plain.get("kind")
    require(kind in kinds, "kind", kind, "one of " + ", ".join(map(repr, kinds)))
    fields = {name: value for name, value in plain.items() if name != "kind"}
    built: Any = kinds[str(kind)]
    return cast("Kind", built.from_plain(fields))
