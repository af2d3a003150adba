"""A DDP as a rank loads it: its declarations, its description, and how cases drive it."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ddp_invariants.errors import DeclarationError, LoadError
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.declarations import Declarations, declare
from ddp_invariants.implementation.names import target_of
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.adapters import METHODS, check_adapter
from ddp_invariants.ranks.driving.arguments import NAMED, OPTIMIZERS, ForeignCall
from ddp_invariants.ranks.driving.course import COURSE, CourseAdapter, kinds_of
from ddp_invariants.ranks.driving.drive import Drive
from ddp_invariants.ranks.driving.imports import (
    Source,
    import_module,
    required,
    resolve,
    setup_call,
    signature,
    source_of,
    version,
)
from ddp_invariants.ranks.driving.settings import LEARNING_RATES, UPDATES
from ddp_invariants.ranks.driving.values import spelled, values_of
from ddp_invariants.situations.call_shape import FORMS as CALL_FORMS
from ddp_invariants.situations.module_use import CAPABILITIES as MODULE_USES

_OF_UPDATES = {"sgd": ("sgd", "momentum", "nesterov"), "adam": ("adam",), "adamw": ("adamw",)}
"""The capabilities that only an optimizer with an update has."""
_OF_SETTINGS = {
    "momentum": ("momentum", "nesterov"),
    "nesterov": ("nesterov",),
    "weight_decay": ("weight_decay",),
    "betas": ("adam_constants",),
    "eps": ("adam_constants",),
    "amsgrad": ("amsgrad",),
    "maximize": ("maximize",),
    "foreach": ("foreach",),
    "fused": ("fused",),
}
"""The capabilities that need a setting of the optimizer."""
_NOT_IN_A_WHOLE_STEP = (
    "no_sync",
    "bucket_cap",
    "zero_in_place",
    "never_zeroed",
    "zero_mixed",
    "zero_by_module",
    "forward_error",
    "backward_error",
    "interrupts",
    "joint",
    "twice",
    "in_parts",
    "evaluation",
    "evaluation_with_gradients",
    "inference_mode",
    "forward_only",
    "forward_only_quiet",
    "learning_rate",
    "decay",
    "freeze",
    "unfreeze",
    "unfreeze_in_group",
    "cast",
    "copy",
    "assign",
    "state",
    "resized",
    "join",
    "clipping",
    "scaler",
    *CALL_FORMS,
    *MODULE_USES,
    "part_mode",
    "own_buffers",
    "input_gradients",
    "closure",
)
"""Capabilities that an adapter's `train_step` rules out: a whole training step is one call."""


@dataclass(frozen=True)
class Description:
    """The facts about an implementation that the controller needs, since it never imports it.

    Attributes:
        name: As a report calls it.
        target: The library it belongs to, for a report.
        version: Of the distribution it comes from, or `unversioned`.
        declares: Its declarations, as plain data.
        lacks: Capabilities that its signature or its methods rule out.
        driven: A description of how it is driven, a line each.
        source: A description of how it is called, for an exported script: plain data with pieces of
            source text (export/).
        defaults: The arguments it takes and their defaults, as text.
    """

    name: str
    target: str
    version: str
    declares: dict[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    driven: tuple[str, ...] = ()
    source: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)


def anywhere(text: str) -> str:
    """Return a text without the folder of this interpreter, which is another one elsewhere.

    The system's interpreter shares its folder with all else.
    """
    return text if sys.prefix in ("/usr", "/usr/local") else text.replace(sys.prefix, "{prefix}")


def defaults(thing: Any) -> dict[str, str]:
    """Return the arguments of a callable, each with the text of its default.

    The text is empty for an argument without a default. The result is empty if Python cannot read
    the signature.
    """
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {
        p.name: "" if p.default is p.empty else anywhere(repr(p.default))[:80] for p in parameters
    }


def _update_of(call: ForeignCall) -> str:
    """Return the update of an optimizer that is derived from one of torch's; otherwise ""."""
    made = call.thing
    if not call.fixes_update or not isinstance(made, type):
        return ""
    return next((name for name, base in UPDATES.items() if issubclass(made, base)), "")


class Driver:
    """A loaded implementation: its declarations, and how a case drives it.

    Attributes:
        ddp: The implementation under test.
        declared: Its declarations.
        methods: The methods that its adapter defines.
        setup: The functions called first, each with its arguments.
        call: The call that wraps; None if nothing is called.
        optimizer: The call that makes the optimizer; None for the case's own.
        after: The function called after backward; None if there is none.

    Raises:
        LoadError: It cannot be tested.
    """

    def __init__(self, ddp: Ddp) -> None:
        self.ddp, self.option = ddp, f"--ddp {ddp.name}"
        self.call: ForeignCall | None = None
        self.adapter: Callable[[], Any] = lambda: None
        self.methods: set[str] = set()
        self.lines: list[str] = []
        self.thing: Any = None
        self.functions: tuple[Callable[..., Any], ...] = ()
        brought: Mapping[str, Any] = {}
        if ddp.name == "none":
            self.lines.append("the module itself, unwrapped")
        elif ddp.name.startswith("course:"):
            brought = self._course(ddp.name.removeprefix("course:"))
        else:
            self.thing = resolve(ddp.name, "ddp")
            brought = self._declares(self.thing)
            if (
                isinstance(self.thing, type)
                and not issubclass(self.thing, nn.Module)
                and any(
                    callable(getattr(self.thing, name, None)) for name in ("wrap", "train_step")
                )
            ):
                brought = {**self._adapt(self.thing), **brought}
            else:
                self.call = ForeignCall(self.thing, self.option, ddp.arguments)
        self.setup = [setup_call(text) for text in ddp.setup]
        self.after = (
            ForeignCall(resolve(ddp.after, "after"), f"--after {ddp.after}", makes="nothing")
            if ddp.after
            else None
        )
        self.optimizer = (
            ForeignCall(
                resolve(ddp.optimizer, "opt"),
                f"--opt {ddp.optimizer}",
                ddp.optimizer_arguments,
                makes="optimizer",
            )
            if ddp.optimizer
            else None
        )
        if self.optimizer is not None:
            # An optimizer that synchronises in its step leaves the gradients local, since no
            # wrapper reduces them.
            usual = {
                "optimizer": "own",
                "update": _update_of(self.optimizer),
                **({"gradients": "hidden"} if ddp.name == "none" else {}),
            }
            brought = {**usual, **brought, **self._declares(self.optimizer.thing)}
        try:
            self.declared = declare(Declarations, {**brought, **ddp.declares})
        except DeclarationError as error:
            raise LoadError(f"{self.option}: it declares {error}") from error
        self._require_an_update()
        self.lines += [] if self.call is None else self.call.explained()
        if self.optimizer is not None:
            self.lines += [f"--opt {line}" for line in self.optimizer.explained()]

    def _require_an_update(self) -> None:
        """Check that an optimizer's update is known if no class of torch names it, and its settings."""
        update = self.declared.update
        for call in (self.call, self.optimizer):
            if call is None or not call.fixes_update:
                continue
            if update == "own":
                self._leave_to(call)
                continue
            if not update:
                raise LoadError(
                    f"{call.option}: it makes an optimizer of its own, since it takes none, and no "
                    "optimizer_class. It is derived from none of torch's SGD, Adam and AdamW, so the "
                    "suite does not know which update it makes; declare it, such as "
                    'declares = {"update": "adamw"}, or "own" if it makes none of theirs. If its '
                    "learning rate is no optimizer's, give it "
                    f"({call.option.split(maxsplit=1)[0]}-arg lr=VALUE)"
                )
            if call.settings is not None and call.settings.lacks(["lr"]):
                raise LoadError(
                    f"{call.option}: it takes no lr by a usual name ({', '.join(LEARNING_RATES)}), "
                    "which differs from case to case; add such an argument, or write an adapter"
                )

    @staticmethod
    def _leave_to(call: ForeignCall) -> None:
        """Leave all settings but the rate to a call whose optimizer makes an update of its own.

        Raises:
            LoadError: It requires another one.
        """
        if call.settings is None:
            return
        missing = [
            name
            for name in required(signature(call.thing, call.option).values())
            if call.settings.names.get(name, "lr") != "lr"
        ]
        if missing:
            raise LoadError(
                f"{call.option}: it requires {', '.join(missing)}, and the cases of an update of its "
                "own have a learning rate alone; give it with "
                f"{call.option.split(maxsplit=1)[0]}-arg {missing[0]}=VALUE"
            )
        call.settings = call.settings.rate_alone()

    @staticmethod
    def _declares(thing: Any) -> Mapping[str, Any]:
        return dict(getattr(thing, "declares", {}))

    def _adapt(self, adapter: type) -> Mapping[str, Any]:
        """Load an adapter class, check its methods, and return the declarations that follow."""
        inherited = inspect.getattr_static(adapter, "__init__") is object.__init__
        parameters = {} if inherited else signature(adapter, self.option)
        values = values_of(self.ddp.arguments, parameters, self.option)
        missing = [name for name in required(parameters.values()) if name not in values]
        if missing:
            raise LoadError(
                f"{self.option}: {adapter.__name__} is made without arguments, but requires "
                f"{', '.join(missing)}; "
                f"give it with --ddp-arg {missing[0]}=VALUE"
            )
        check_adapter(adapter, self.option)
        replaced = {
            "start": "before_batch",
            "finish": "after_backward",
            "after": "after_backward",
            "setup": "setup",
            "optimizer": "make_optimizer",
        }
        for option, method in replaced.items():
            if getattr(self.ddp, option) and callable(getattr(adapter, method, None)):
                raise LoadError(
                    f"{self.option}: --{option.replace('optimizer', 'opt')} would have no "
                    "effect, since "
                    f"{adapter.__name__} has {method}"
                )
        self.adapter = lambda: adapter(**values)
        self.methods = {name for name in METHODS if callable(getattr(adapter, name, None))}
        self.lines.append(
            f"adapter with {', '.join(name for name in METHODS if name in self.methods)}"
        )
        if "train_step" not in self.methods:
            return {}
        if "stack" not in self._declares(adapter):
            raise LoadError(
                f"{self.option}: {adapter.__name__} has train_step, so it must declare the "
                "model it computes, such "
                'as declares = {"stack": {"layers": 2, "activation": "relu"}}'
            )
        if self._declares(adapter).get("loss", "mse") != "mse":
            raise LoadError(
                f"{self.option}: {adapter.__name__} has train_step, which gets no tags, so its "
                'loss must be "mse"'
            )
        return {"optimizer": "own", "gradients": "hidden", "accumulation": "none", "loss": "mse"}

    def _course(self, named: str) -> Mapping[str, Any]:
        """Load a course's module of adapter functions, and return the declarations that follow."""
        path, _, kind = named.partition("#")
        if kind not in COURSE:
            raise LoadError(
                f"{self.option}: expected course:path/to/adapters.py#KIND, KIND one of "
                f"{', '.join(COURSE)}"
            )
        module = import_module(path, self.option)
        functions = {role: getattr(module, name, None) for role, name in COURSE[kind].items()}
        missing = [
            COURSE[kind][role]
            for role in ("wrap", "make_optimizer")
            if role in functions and functions[role] is None
        ]
        if missing:
            raise LoadError(f"{self.option}: {path} has no {missing[0]!r}; {kinds_of(module)}")
        adapter = CourseAdapter(
            {role: function for role, function in functions.items() if function is not None}
        )
        self.adapter, self.methods = lambda: adapter, set(adapter.functions)
        self.thing = next(iter(adapter.functions.values()))
        self.functions = tuple(adapter.functions.values())
        self.lines.append(
            f"course functions {', '.join(COURSE[kind][role] for role in adapter.functions)}"
        )
        if kind == "sharded":
            self.call = ForeignCall(nn.parallel.DistributedDataParallel, "--ddp torch")
            self.lines.append(
                "its optimizer synchronises no gradients, so the module is wrapped in "
                "torch.nn.parallel.DistributedDataParallel"
            )
        declared: dict[str, dict[str, Any]] = {
            "fsdp": {"zero": 3, "gradients": "hidden"},
            "sharded": {"zero": 1, "partition": "parameters"},
        }
        # The name does not say whether this hook runs before each step or before each micro-step.
        return {
            **declared.get(kind, {}),
            **({"accumulation": "none"} if "before_batch" in adapter.functions else {}),
        }

    def describe(self) -> Description:
        """Return what the controller may draw for the implementation, and the lines it prints."""
        about = (
            self.optimizer.thing
            if self.thing is None and self.optimizer is not None
            else self.thing
        )
        target = "no wrapper" if self.ddp.name == "none" else target_of(self.ddp.name, "ddp")
        return Description(
            str(self.ddp),
            target,
            version(about),
            vars(self.declared),
            tuple(self._lacks()),
            tuple(self.lines),
            self._source(),
            defaults(self.thing) if self.thing is not None else {},
        )

    def _lacks(self) -> list[str]:
        """Return the capabilities that the signature, the methods or the declarations rule out."""
        lacks = self._lacks_by_calls()
        if self.declared.zero or self.declared.optimizer == "own":
            # Each rank has a part of the optimizer's state, and the optimizer, too, would have to
            # join.
            lacks += ["join"]
            lacks += [] if "resized" in self.declared.supports else ["resized"]
        if self.declared.gradients != "all" or "gradients" in self.methods:
            # The gradients to scale are not in `.grad`, or not all of them are.
            lacks += ["clipping", "scaler"]
        if (
            self.declared.zero
            or self.declared.optimizer == "own"
            or self.declared.main
            or {"backward", "step"} & self.methods
            or "nonfinite" in self.declared.unsupported
        ):
            # The implementation alone decides who skips a step and why, or it may skip no step.
            lacks += ["scaler"]
        if (
            self.declared.zero
            or self.declared.optimizer == "own"
            or self.declared.main
            or {"backward", "step", "zero_grad", "gradients", "before_batch"} & self.methods
        ):
            # Gradients are kept elsewhere, too, and the implementation says what clears them.
            lacks += ["zero_by_module"]
        lacks += self._not_taken()
        if "wrap" in self.methods:  # Only the adapter can say whether it uses the context's values.
            lacks += [
                name
                for name in ("bucket_cap", "subgroup", "own_buffers")
                if name not in self.declared.supports
            ]
        if "step" in self.methods and "step_with_closure" not in self.methods:
            lacks += ["closure"]
        lacks += self._other_updates()
        if "train_step" in self.methods:
            lacks += _NOT_IN_A_WHOLE_STEP
        if "forward" in self.methods:  # The adapter's method takes one tensor.
            lacks += ["keyword_inputs", "several_inputs", "wide_inputs", "nested_inputs"]
        if {"backward", "train_step"} & self.methods:  # It may scale the loss as it likes.
            lacks += ["input_gradients"]
        # The implementation cannot know that another backward follows.
        lacks += ["retained"] if {"backward", "train_step"} & self.methods else []
        return lacks

    def _other_updates(self) -> list[str]:
        """Return the capabilities that an optimizer lacks because it makes one kind of update."""
        update = self.declared.update
        if not update:
            return []
        if update == "own":
            settings = {name for names in _OF_SETTINGS.values() for name in names}
            return [*sorted(settings), "decay", "adam", "adamw"]
        foreign = [name for kind, names in _OF_UPDATES.items() if kind != update for name in names]
        return [*foreign, "adam_constants", "amsgrad"] if update == "sgd" else foreign

    def _not_taken(self) -> list[str]:
        """Return the capabilities of an optimizer that gets no buffers, or not all settings."""
        optimizer = self.optimizer if self.ddp.name == "none" else None
        unseen = optimizer is not None and optimizer.of_parameters
        buffers = ["buffers"] if unseen and "buffers" not in self.declared.supports else []
        return buffers + [
            name
            for call in (self.call, self.optimizer)
            if call is not None and call.fixes_update and call.settings is not None
            for setting in call.settings.lacks([*_OF_SETTINGS])
            for name in _OF_SETTINGS[setting]
        ]

    def _lacks_by_calls(self) -> list[str]:
        """Return the capabilities that the arguments of the calls rule out."""
        if {"wrap", "train_step"} & self.methods:
            return []
        capped = self.call is not None and self.call.cap not in (None, *self.call.given)
        told = self.call is not None and self.call.own_buffers is not None
        calls = [call for call in (self.call, self.optimizer, self.after) if call is not None]
        grouped = bool(calls) and all(call.group is not None for call in calls)
        offered = {"bucket_cap": capped, "subgroup": grouped, "own_buffers": told}
        return [name for name, is_offered in offered.items() if not is_offered]

    @property
    def made_of(self) -> Source:
        """The files of the implementation under test."""
        calls = [call.thing for call in (self.optimizer, self.after) if call is not None]
        return source_of(
            *(thing for thing in (self.thing, *self.functions, *calls) if thing is not None)
        )

    def _source(self) -> dict[str, Any]:
        """Describe the calls as source text in the variable names of an exported script."""
        setup = [
            [
                text.partition("(")[0],
                {
                    name: {"WORLD": "WORLD_SIZE", "RANK": "rank"}[value]
                    if isinstance(value, str)
                    else repr(value[0])
                    for name, value in values.items()
                },
            ]
            for text, (_, values) in zip(self.ddp.setup, self.setup, strict=True)
        ]
        optimizer = None
        if self.optimizer is not None:
            first = self.optimizer.first
            optimizer = {
                "target": self.ddp.optimizer,
                "rows": self.optimizer.source("wrapped"),
                "needs": first in OPTIMIZERS or self.optimizer.takes_optimizer,
                "first": "wrapped"
                if first in ("model", "module")
                else "optimizer"
                if first in OPTIMIZERS
                else f"list(model.{'named_' if first in NAMED else ''}parameters())",
            }
        return {
            "wrap": None if self.call is None else self.call.source(),
            "module": isinstance(self.thing, type) and issubclass(self.thing, nn.Module),
            "takes_optimizer": self.call is not None and self.call.takes_optimizer,
            "methods": sorted(self.methods),
            "adapter": {name: spelled(text) for name, text in self.ddp.arguments},
            "setup": setup,
            "optimizer": optimizer,
            "after": None
            if self.after is None
            else {"target": self.ddp.after, "rows": self.after.source("wrapped")},
        }

    def start(self, context: Context, replica: nn.Module) -> Drive:
        """Return the driver of one case."""
        return Drive(self, context, replica, self.adapter())
