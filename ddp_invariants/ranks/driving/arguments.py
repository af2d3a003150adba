"""Calls of foreign functions and classes, with arguments chosen by their usual names.

Public implementations differ in names and units, but hardly in the shape of their signatures.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, Literal

import torch

from ddp_invariants.errors import LoadError
from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.spec import Arguments
from ddp_invariants.ranks.driving.imports import first, required, signature
from ddp_invariants.ranks.driving.settings import LEARNING_RATES, Settings
from ddp_invariants.ranks.driving.values import spelled, values_of

_MIB = 2.0**20
_ELEMENT = 4
"""Bytes of one element (float32), for a bucket capacity given in elements."""
BUCKET_CAPS: dict[str, tuple[str, Callable[[int], float], str]] = {
    **dict.fromkeys(
        ("bucket_cap_mb", "bucket_size_mb", "bucket_mb"),
        ("MiB", lambda size: size / _MIB, "BUCKET_CAP / 2**20"),
    ),
    **dict.fromkeys(
        ("bucket_cap_bytes", "bucket_size_bytes", "bucket_bytes"),
        ("bytes", lambda size: size, "BUCKET_CAP"),
    ),
    **dict.fromkeys(
        ("bucket_size", "bucket_numel", "buffer_size", "reduce_buffer_size", "reduce_bucket_size"),
        ("elements", lambda size: max(1, size // _ELEMENT), f"max(1, BUCKET_CAP // {_ELEMENT})"),
    ),
}
"""The unit, the conversion from bytes and its source text, by the bucket cap argument's name."""

OWN_BUFFERS = ("broadcast_buffers", "forward_sync_buffers")
"""Arguments by which, if false, a wrapper leaves each rank its own buffers."""
GROUPS = ("process_group", "dp_process_group", "data_parallel_group", "dp_group", "group", "pg")
RANKS = ("rank", "local_rank", "dp_rank", "data_parallel_rank")
WORLD_SIZES = (
    "world_size",
    "num_replicas",
    "dp_size",
    "dp_world_size",
    "data_parallel_size",
    "data_parallel_world_size",
)
OPTIMIZERS = ("optimizer", "opt", "optim", "sharded_optimizer", "base_optimizer", "inner_optimizer")
OPTIMIZER_CLASSES = (
    "optimizer_class",
    "optimizer_cls",
    "optim_class",
    "optim_cls",
    "optimizer_type",
    "optim",
)
OPTIMIZER_ARGUMENTS = (
    "optimizer_arguments",
    "optimizer_kwargs",
    "optim_kwargs",
    "optimizer_args",
    "optim_args",
)
PARAMETERS = ("params", "parameters", "param_groups", "model_parameters")
NAMED = ("named_parameters", "named_params")
_ALL_VALUES, _ALL_KEYWORDS = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
_KNOWN = (
    *BUCKET_CAPS,
    *GROUPS,
    *RANKS,
    *WORLD_SIZES,
    *OPTIMIZERS,
    *OPTIMIZER_CLASSES,
    *OPTIMIZER_ARGUMENTS,
    *PARAMETERS,
    *NAMED,
    *LEARNING_RATES,
    "device",
    "seed",
    "model",
    "module",
)


class ForeignCall:
    """A foreign callable together with the arguments that it requires.

    Attributes:
        fixes_update: True if it makes an optimizer by itself, and no class of torch says which.
        settings: The settings that it takes of an optimizer; None if it makes none, or if the user
            gave all of them in one argument.

    Args:
        thing: The callable.
        option: The user's name for it, for messages.
        given: Arguments the user gave.
        makes: What it makes: a `wrapper`, or an `optimizer` from parameters, a module or an
            optimizer.
    """

    def __init__(
        self,
        thing: Any,
        option: str,
        given: Arguments = (),
        *,
        makes: Literal["wrapper", "optimizer", "nothing"] = "wrapper",
    ) -> None:
        self.thing, self.option = thing, option
        parameters = signature(thing, option)
        if not parameters:
            takes_first = (
                "parameters, a module or an optimizer" if makes == "optimizer" else "the module"
            )
            raise LoadError(
                f"{option}: it takes no argument, expected {takes_first} as the first argument"
            )
        self.first, *rest = parameters
        self.given = values_of(given, parameters, option)
        self._texts = dict(given)
        self.cap, self.group = first(BUCKET_CAPS, parameters), first(GROUPS, parameters)
        given_already = self.given.keys() & {*OWN_BUFFERS}
        self.own_buffers = None if given_already else first(OWN_BUFFERS, parameters)
        named = [name for name in rest if parameters[name].kind not in (_ALL_VALUES, _ALL_KEYWORDS)]
        in_one = first(OPTIMIZER_ARGUMENTS, named)
        # A wrapper's `optim` may be an optimizer; that of a sharded optimizer is a class.
        plain = makes != "optimizer" and in_one is None and "optim" in named
        usual = parameters["optim"].default if plain else None
        is_one = plain and (usual is Parameter.empty or not isinstance(usual, type))
        self._classes = {name for name in OPTIMIZER_CLASSES if name != "optim" or not is_one}
        needed = {*required(parameters.values()), *self._classes}
        self.wanted = [name for name in named if name in needed and name not in self.given]
        takes_none = not self.takes_optimizer and self.first not in OPTIMIZERS
        has_a_rate = makes == "wrapper" and any(name in LEARNING_RATES for name in self.wanted)
        alone = takes_none and (makes == "optimizer" or has_a_rate)
        self.fixes_update = alone and not self.takes_class
        self.settings: Settings | None = None
        if (alone or self.takes_class) and in_one not in self.given:
            every = any(p.kind is _ALL_KEYWORDS for p in parameters.values())
            # A wrapper's other settings may be those of an outer optimizer.
            own = [] if in_one is not None and makes == "wrapper" else named
            self.settings = Settings(own, self.given, in_one or ("**" if every else ""))
            passed = {*self.settings.names, in_one}
            self.wanted = [name for name in self.wanted if name not in passed]
        missing = [name for name in self.wanted if name not in _KNOWN]
        if missing:
            raise LoadError(
                f"{option}: it requires {', '.join(missing)}, for which no value is known; "
                "give it with "
                f"{option.split(maxsplit=1)[0]}-arg {missing[0]}=VALUE, or write an adapter"
            )

    @property
    def takes_optimizer(self) -> bool:
        """True if it requires an optimizer that exists already."""
        return any(name in OPTIMIZERS and name not in self._classes for name in self.wanted)

    @property
    def of_parameters(self) -> bool:
        """True if it gets no module and no optimizer."""
        return not {self.first, *self.wanted}.intersection(("model", "module", *OPTIMIZERS))

    @property
    def takes_class(self) -> bool:
        """True if it makes the optimizer itself, from a class."""
        return any(name in self._classes for name in self.wanted)

    def explained(self) -> list[str]:
        """Describe how it is called, a line each."""
        lines = [f"called with {self.first!r} first"]
        lines += (
            [f"bucket capacity in {BUCKET_CAPS[self.cap][0]} as {self.cap!r}"] if self.cap else []
        )
        lines += [f"process group as {self.group!r}"] if self.group else []
        lines += [f"own buffers as '{self.own_buffers}=False'"] if self.own_buffers else []
        lines += [f"also passed: {', '.join(self.wanted)}"] if self.wanted else []
        lines += [self.settings.explained()] if self.settings is not None else []
        lines += (
            [f"given: {', '.join(f'{name}={value!r}' for name, value in self.given.items())}"]
            if self.given
            else []
        )
        return lines

    def __call__(
        self, thing: Any, context: Context, module: Any = None, optimizer: Any = None
    ) -> Any:
        """Call the callable with its first argument.

        Raises whatever the implementation raises.
        """
        arguments: dict[str, Any] = dict(self.given)
        if self.cap is not None and self.cap not in arguments:
            if context.bucket_cap is not None:
                arguments[self.cap] = BUCKET_CAPS[self.cap][1](context.bucket_cap)
            elif self.cap in self.wanted:
                arguments[self.cap] = BUCKET_CAPS[self.cap][1](25 << 20)
        if self.group is not None and (context.group is not None or self.group in self.wanted):
            arguments[self.group] = (
                torch.distributed.group.WORLD if context.group is None else context.group
            )
        if context.own_buffers and self.own_buffers is not None:
            arguments[self.own_buffers] = False
        for name in self.wanted:
            if name not in arguments:
                arguments[name] = self._value(name, context, module, optimizer)
        if self.settings is None:
            return self.thing(thing, **arguments)
        plan = context.optimizer_class, context.optimizer_arguments
        with self._refusing():
            arguments |= self.settings.of(*plan)
        made = self.thing(thing, **arguments)
        with self._refusing():
            self.settings.require(made, *plan)
        return made

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Add the option's name to a refusal."""
        try:
            yield
        except NotImplementedError as refused:
            raise NotImplementedError(f"{self.option}: {refused}") from None

    def _value(self, name: str, context: Context, module: Any, optimizer: Any) -> Any:
        if name in self._classes:
            return context.optimizer_class
        fixed = {
            **dict.fromkeys(RANKS, context.rank),
            **dict.fromkeys(WORLD_SIZES, context.world_size),
            **dict.fromkeys(OPTIMIZERS, optimizer),
            **{known: dict(context.optimizer_arguments) for known in OPTIMIZER_ARGUMENTS},
            **dict.fromkeys(LEARNING_RATES, context.lr),
            "device": context.device,
            "seed": context.seed,
            "module": module,
            "model": module,
        }
        if name in NAMED:
            return list(module.named_parameters())
        return fixed[name] if name in fixed else list(module.parameters())

    def source(self, module: str = "model") -> list[list[str]]:
        """Return the call as source text of an exported script: rows [argument, expression, when].

        `when` is empty for an argument that is always passed. It is `cap` if the argument is passed
        only when a case sets a bucket capacity, `group` if only when the case trains in a subgroup,
        `own buffers` if only when the case leaves each rank its own buffers, and `setting` if only
        when the case's optimizer has the setting, whose name is then the expression. Expressions
        use the variable names of the script (templates/training.py.j2).

        Args:
            module: The script's name for the variable that is passed as the module.
        """
        rows = [[name, spelled(text), ""] for name, text in self._texts.items()]
        if self.cap is not None and self.cap not in self.given:
            rows.append(
                [self.cap, BUCKET_CAPS[self.cap][2], "" if self.cap in self.wanted else "cap"]
            )
        if self.group is not None:
            rows.append([self.group, "group", "" if self.group in self.wanted else "group"])
        if self.own_buffers is not None:
            rows.append([self.own_buffers, "False", "own buffers"])
        written = {
            **dict.fromkeys(self._classes, "OPTIMIZER"),
            **dict.fromkeys(OPTIMIZER_ARGUMENTS, "dict(OPTIMIZER_ARGUMENTS)"),
            **dict.fromkeys(RANKS, "rank"),
            **dict.fromkeys(WORLD_SIZES, "WORLD_SIZE"),
            **dict.fromkeys(
                (name for name in OPTIMIZERS if name not in self._classes), "optimizer"
            ),
            **dict.fromkeys(PARAMETERS, f"list({module}.parameters())"),
            **dict.fromkeys(NAMED, f"list({module}.named_parameters())"),
            **dict.fromkeys(("module", "model"), module),
            "device": 'torch.device("cpu")',
            **dict.fromkeys(LEARNING_RATES, 'OPTIMIZER_ARGUMENTS["lr"]'),
            "seed": "SEED",
        }
        known = {row[0] for row in rows}
        rows += [[name, written[name], ""] for name in self.wanted if name not in known]
        return rows if self.settings is None else rows + self.settings.source()
