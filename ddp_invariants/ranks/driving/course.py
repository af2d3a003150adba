"""A course's module of adapter functions, loaded as a whole.

Hundreds of public implementations are files of this shape.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ddp_invariants.implementation.adapter import Context
from ddp_invariants.ranks.driving.arguments import ForeignCall

COURSE: dict[str, dict[str, str]] = {
    "individual": {
        "wrap": "get_ddp_individual_parameters",
        "after_backward": "ddp_individual_parameters_on_after_backward",
    },
    "bucketed": {
        "wrap": "get_ddp_bucketed",
        "after_backward": "ddp_bucketed_on_after_backward",
        "before_batch": "ddp_bucketed_on_train_batch_start",
    },
    "ddp": {
        "wrap": "get_ddp",
        "after_backward": "ddp_on_after_backward",
        "before_batch": "ddp_on_train_batch_start",
    },
    "fsdp": {
        "wrap": "get_fsdp",
        "after_backward": "fsdp_on_after_backward",
        "before_batch": "fsdp_on_train_batch_start",
    },
    "sharded": {"make_optimizer": "get_sharded_optimizer"},
}
"""The course's function for each adapter method, by kind."""


def kinds_of(module: Any) -> str:
    """Describe which kinds a course module offers instead."""
    kinds = [
        kind
        for kind, roles in COURSE.items()
        if any(hasattr(module, name) for name in list(roles.values())[:1])
    ]
    return (
        f"it has the functions of #{', #'.join(kinds)}"
        if kinds
        else "it has none of the expected functions"
    )


class CourseAdapter:
    """A course's functions as an adapter's methods."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions = functions
        for name in ("after_backward", "before_batch"):
            if name in functions:
                setattr(self, name, functions[name])

    def wrap(self, module: nn.Module, context: Context) -> object:
        """Wrap the module with the course's wrapper."""
        return ForeignCall(self.functions["wrap"], "--ddp course")(module, context, module)

    def make_optimizer(self, wrapped: nn.Module, context: Context) -> Any:
        """Make the course's sharded optimizer."""
        return self.functions["make_optimizer"](
            list(wrapped.parameters()), context.optimizer_class, **context.optimizer_arguments
        )
