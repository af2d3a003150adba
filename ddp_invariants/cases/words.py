"""The fields of a case in words.

Standard library only: the rank side imports this module under any interpreter.
"""

from dataclasses import asdict

from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import (
    BetweenSteps,
    Data,
    Exhausted,
    InjectedFailure,
    LossScale,
    Optimizer,
    Perturbation,
    Poison,
    Unused,
)


def brief(value: object) -> str:
    """Return a field's value as `describe` prints it.

    Of a plan, such as an optimizer, only the fields are printed that differ from their defaults.
    """
    if isinstance(value, Model):
        naming = "" if value.naming == "numbered" else f" naming={value.naming}"
        return f"{value.inputs}->{','.join(map(brief, value.layers))}{naming}"
    if isinstance(value, Layer):
        differing = [
            f"{k}={v}" for k, v in asdict(value).items() if k != "kind" and v != getattr(Layer, k)
        ]
        return value.kind + (f"({','.join(differing)})" if differing else "")
    if (
        isinstance(value, tuple)
        and value
        and isinstance(value[0], Unused | BetweenSteps | Exhausted)
    ):
        return "+".join(brief(each) for each in value)
    if isinstance(
        value,
        Data
        | Optimizer
        | Poison
        | LossScale
        | Perturbation
        | InjectedFailure
        | Unused
        | BetweenSteps
        | Exhausted,
    ):
        differing = [
            f"{k}={v}" for k, v in asdict(value).items() if v != getattr(type(value), k, None)
        ]
        return f"({','.join(differing)})"
    return str(value)
