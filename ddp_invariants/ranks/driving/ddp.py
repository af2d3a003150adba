"""The calls that drive a DDP around a step, chosen by their usual names.

A method that an adapter defines (adapter.py) replaces the usual call.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from ddp_invariants.errors import DeclarationError, LoadError
from ddp_invariants.implementation.adapter import Adapter, Context
from ddp_invariants.implementation.declarations import Declarations, declare
from ddp_invariants.implementation.names import target_of
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.arguments import BUCKET_CAPS, OPTIMIZERS, ForeignCall
from ddp_invariants.ranks.driving.course import COURSE, CourseAdapter, kinds_of
from ddp_invariants.ranks.driving.imports import (
    Source,
    import_module,
    required,
    resolve,
    setup_call,
    signature,
    source_of,
    spelled,
    values_of,
    version,
)

FINISHERS = (
    "finish_gradient_synchronization",
    "finish_gradient_sync",
    "finish_grad_sync",
    "sync_gradients",
    "sync_grads",
    "sync_grad",
    "synchronize_gradients",
    "synchronise_gradients",
    "all_reduce_grads",
    "allreduce_grads",
    "all_reduce_gradients",
    "allreduce_gradients",
    "reduce_gradients",
    "average_gradients",
    "wait_for_gradients",
    "on_after_backward",
    "synchronize",
)
"""Methods called after backward if the wrapper has one; no name is a method of nn.Module."""
STARTERS = (
    "on_train_batch_start",
    "start_gradient_synchronization",
    "zero_grad_buffer",
    "reset_buckets",
    "reset_gradient",
    "reset",
)
"""Methods called before a step's batch if the wrapper has one."""
BROADCASTS = ("broadcast_params", "broadcast_parameters", "sync_params", "sync_parameters")
"""Methods called once after wrapping if the wrapper has one."""

QUIET = ("no_sync", "set_requires_gradient_sync", "require_backward_grad_sync")
"""Ways to run a wrapper's backward without communication; the first one it has is used."""

METHODS = {
    name: member
    for name, member in vars(Adapter).items()
    if inspect.isfunction(member) and not name.startswith("_")
}
"""The methods an adapter may define, by name."""

NOT_A_MODEL = (
    "{} returned an object that cannot be called like a model; expected a module, or an adapter "
    "with wrap"
)


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
            source text (export.py).
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


def defaults(thing: Any) -> dict[str, str]:
    """Return the arguments of a callable, each with the text of its default.

    The text is empty for an argument without a default. The result is empty if Python cannot read
    the signature.
    """
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: "" if p.default is p.empty else repr(p.default)[:80] for p in parameters}


class Driver:
    """A loaded implementation: its declarations, and how a case drives it.

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
                self.lines += self.call.explained()
        self.setup = [setup_call(text) for text in ddp.setup]
        self.after = (
            ForeignCall(resolve(ddp.after, "after"), f"--after {ddp.after}") if ddp.after else None
        )
        self.optimizer = (
            ForeignCall(
                resolve(ddp.optimizer, "opt"),
                f"--opt {ddp.optimizer}",
                ddp.optimizer_arguments,
                "parameters, a module or an optimizer",
            )
            if ddp.optimizer
            else None
        )
        if self.optimizer is not None:
            # An optimizer that synchronises in its step leaves the gradients local, since no
            # wrapper reduces them.
            usual = {"optimizer": "own", **({"gradients": "hidden"} if ddp.name == "none" else {})}
            brought = {**usual, **brought, **self._declares(self.optimizer.thing)}
            self.lines += [f"--opt {line}" for line in self.optimizer.explained()]
        try:
            self.declared = declare(Declarations, {**brought, **ddp.declares})
        except DeclarationError as error:
            raise LoadError(f"{self.option}: it declares {error}") from error

    @staticmethod
    def _declares(thing: Any) -> Mapping[str, Any]:
        return dict(getattr(thing, "declares", {}))

    def _adapt(self, adapter: type) -> Mapping[str, Any]:
        """Load an adapter class, check its methods, and return the declarations that follow."""
        parameters = signature(adapter, self.option) if "__init__" in vars(adapter) else {}
        values = values_of(self.ddp.arguments, parameters, self.option)
        missing = [name for name in required(parameters.values()) if name not in values]
        if missing:
            raise LoadError(
                f"{self.option}: {adapter.__name__} is made without arguments, but requires "
                f"{', '.join(missing)}; "
                f"give it with --ddp-arg {missing[0]}=VALUE"
            )
        _check_adapter(adapter, self.option)
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
        lacks = []
        if "wrap" not in self.methods and "train_step" not in self.methods:
            lacks += (
                ["bucket_cap"]
                if self.call is None or self.call.cap in (None, *self.call.given)
                else []
            )
            calls = [call for call in (self.call, self.optimizer, self.after) if call is not None]
            lacks += ["subgroup"] if not calls or any(call.group is None for call in calls) else []
        if self.declared.zero or self.declared.optimizer == "own":
            # Each rank has a part of the optimizer's state, and the optimizer, too, would have to
            # join.
            lacks += [
                "resized",
                "join",
            ]
        if self.declared.zero or self.declared.gradients != "all" or "gradients" in self.methods:
            # The gradients to scale are not in `.grad`, or not all of them are.
            lacks += [
                "clipping",
                "scaler",
            ]
        if (
            self.declared.optimizer == "own"
            or self.declared.main
            or {"backward", "step"} & self.methods
            or "nonfinite" in self.declared.unsupported
        ):
            # The implementation alone decides who skips a step and why, or it may skip no step.
            lacks += ["scaler"]
        if "wrap" in self.methods:  # Only the adapter can say whether it uses the context's values.
            lacks += [
                name for name in ("bucket_cap", "subgroup") if name not in self.declared.supports
            ]
        if "train_step" in self.methods:
            lacks += [
                "no_sync",
                "bucket_cap",
                "zero_in_place",
                "never_zeroed",
                "forward_error",
                "backward_error",
                "joint",
                "twice",
                "in_parts",
                "evaluation",
                "evaluation_with_gradients",
                "forward_only",
                "forward_only_quiet",
                "learning_rate",
                "decay",
                "freeze",
                "unfreeze",
                "cast",
                "copy",
                "assign",
                "state",
                "resized",
                "join",
                "clipping",
                "scaler",
            ]
        # The implementation cannot know that another backward follows.
        lacks += ["retained"] if {"backward", "train_step"} & self.methods else []
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
            tuple(lacks),
            tuple(self.lines),
            self._source(),
            defaults(self.thing) if self.thing is not None else {},
        )

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
                else "list(model.parameters())",
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

    def start(self, context: Context, replica: nn.Module) -> "Drive":
        """Return the driver of one case."""
        return Drive(self, context, replica, self.adapter())


class Drive:
    """The calls of one case: the adapter's methods if it has them, else the usual calls.

    Attributes:
        driven: The calls found by name, for the explanation: the moment and the call.
    """

    def __init__(self, driver: Driver, context: Context, replica: nn.Module, adapter: Any) -> None:
        self.driver, self.context, self.replica = driver, context, replica
        self.brought: Any = None
        self.driven: dict[str, str] = {}
        self._finish: str | None = None
        self._start: str | None = None
        for name in driver.methods:
            setattr(self, name, getattr(adapter, name))
        self.whole_step = "train_step" in driver.methods

    # The usual calls; documented in adapter.Adapter.

    def setup(self, context: Context) -> object:
        for function, values in self.driver.setup:
            here = {"WORLD": context.world_size, "RANK": context.rank}
            function(
                **{
                    name: here[value] if isinstance(value, str) else value[0]
                    for name, value in values.items()
                }
            )
        return None

    def wrap(self, module: nn.Module, context: Context) -> object:
        call = self.driver.call
        if call is None:
            return module
        optimizer = self._optimizer(module, context) if call.takes_optimizer else None
        made = call(module, context, module, optimizer)
        return (
            made
            if optimizer is None or isinstance(made, tuple)
            else (module if made is None else made, optimizer)
        )

    def make_optimizer(self, wrapped: Any, context: Context) -> Any:
        if self.brought is not None:
            return self.brought
        return self._optimizer(wrapped, context)

    def _optimizer(self, wrapped: Any, context: Context) -> Any:
        """Make the `--opt` optimizer under test, else the case's, over the trained parameters."""
        trained = _trained(wrapped) or _trained(self.replica)
        call = self.driver.optimizer
        if call is None:
            return context.optimizer(trained)
        if call.first in ("model", "module"):
            return call(
                wrapped,
                context,
                wrapped,
                context.optimizer(trained) if call.takes_optimizer else None,
            )
        if call.first in OPTIMIZERS:
            return call(context.optimizer(trained), context, wrapped)
        return call(trained, context, wrapped)

    def before_batch(self, wrapped: Any, optimizer: Any) -> object:
        del optimizer
        return getattr(wrapped, self._start)() if self._start else None

    def zero_grad(
        self,
        wrapped: Any,
        optimizer: Any,
        set_to_none: bool,  # noqa: FBT001 - as an adapter's
    ) -> object:
        del wrapped
        if not _takes(optimizer.zero_grad, "set_to_none"):
            if set_to_none:
                return optimizer.zero_grad()
            raise NotImplementedError(f"{type(optimizer).__name__}.zero_grad takes no set_to_none")
        return optimizer.zero_grad(set_to_none=set_to_none)

    def accumulate(self, wrapped: Any) -> AbstractContextManager[object]:
        quiet = _quiet(wrapped)
        return nullcontext() if quiet is None else quiet()

    def join(self, wrapped: Any, optimizer: Any) -> AbstractContextManager[object]:
        del optimizer
        entered: AbstractContextManager[object] = wrapped.join()
        return entered

    def forward(self, wrapped: Any, inputs: Tensor) -> Any:
        return wrapped(inputs)

    def backward(self, wrapped: Any, optimizer: Any, loss: Tensor) -> object:
        del optimizer
        if self._engine("backward", wrapped):
            return wrapped.backward(loss)
        return loss.backward()

    def after_backward(self, wrapped: Any, optimizer: Any) -> object:
        if self._finish:
            getattr(wrapped, self._finish)()
        if self.driver.after is not None:
            self.driver.after(wrapped, self.context, wrapped, optimizer)
        return None

    def gradients(self, wrapped: Any) -> Mapping[str, Tensor | None]:
        del wrapped
        return {name: _gradient(parameter) for name, parameter in self.replica.named_parameters()}

    def clip(self, wrapped: Any, optimizer: Any, norm: float) -> object:
        del optimizer
        own = getattr(wrapped, "clip_grad_norm_", None)
        return (
            own(norm)
            if callable(own)
            else nn.utils.clip_grad_norm_(list(self.replica.parameters()), norm)
        )

    def step(self, wrapped: Any, optimizer: Any) -> object:
        if self._engine("step", wrapped):
            return wrapped.step()
        main_only = [
            p
            for p in self.replica.parameters()
            if p.grad is None and getattr(p, "main_grad", None) is not None
        ]
        for parameter in main_only:
            self.driven["gradients"] = "in .main_grad"
            gradient = _gradient(parameter)
            parameter.grad = None if gradient is None else gradient.clone()
        stepped = optimizer.step()
        for parameter in main_only:  # Set for the step only: autograd must not add to it.
            parameter.grad = None
        return stepped

    def _engine(self, method: str, wrapped: Any) -> bool:
        """Return whether the wrapper is an engine that runs backward, and perhaps the step, itself.

        No nn.Module has these methods.
        """
        if not all(callable(getattr(type(wrapped), name, None)) for name in ("backward", method)):
            return False
        self.driven[method] = f"{method}() of the wrapper"
        return True

    def train_step(
        self, parameters: Mapping[str, Any], inputs: Tensor, targets: Tensor, context: Context
    ) -> object:
        raise NotImplementedError  # Called only if the adapter defines it.

    def teardown(self, context: Context) -> object:
        del context
        return None

    # Start and wrapping.

    def begin(self) -> tuple[Any, Any]:
        """Set up and wrap, and return the object to be called and the optimizer.

        Raises:
            TypeError: Wrapping returned an object that cannot be trained.
        """
        self.setup(self.context)
        made: Any = self.wrap(self.replica, self.context)
        if isinstance(made, tuple) and len(made) >= 2:
            made, self.brought = made[0], made[1]
            if self.driver.optimizer is not None and not (
                self.driver.call and self.driver.call.takes_optimizer
            ):
                raise TypeError("wrapping returned an optimizer of its own, so --opt has no effect")
        # Test `is None`, not truth, since a wrapper's len() may raise.
        wrapped = self.replica if made is None else made
        if not callable(wrapped) and "forward" not in self.driver.methods:
            raise TypeError(NOT_A_MODEL.format(self.driver.ddp.name))
        broadcast = _method_of(wrapped, BROADCASTS)
        if broadcast:
            getattr(wrapped, broadcast)()
            self.driven["after wrapping"] = f"{broadcast}()"
        ddp = self.driver.ddp
        self._start = self._named("start", wrapped, ddp.start, STARTERS)
        self._finish = self._named("finish", wrapped, ddp.finish, FINISHERS)
        self.driven["accumulation"] = self._accumulation(wrapped)
        if "join" in self.driver.methods or callable(getattr(wrapped, "join", None)):
            self.driven["uneven batches"] = "join()"
        if self.driver.call is not None and self.driver.call.cap is not None:
            self.driven["bucket capacity"] = BUCKET_CAPS[self.driver.call.cap][0]
        if self.driven["accumulation"] == "no_sync" and "accumulate" not in self.driver.methods:
            holders = wrapped, getattr(wrapped, "_orig_mod", None)
            self.driven["without communication"] = next(
                (name for name in QUIET if any(hasattr(holder, name) for holder in holders)),
                QUIET[0],
            )
        return wrapped, self.make_optimizer(wrapped, self.context)

    def _named(self, option: str, wrapped: Any, given: str, usual: tuple[str, ...]) -> str | None:
        """Return the method to call at a moment: the given one, or the first usual one there is.

        Raises:
            AttributeError: There is no such method.
        """
        if given == "none":
            return None
        if given and not callable(getattr(type(wrapped), given, None)):
            close = difflib.get_close_matches(given, dir(type(wrapped)), 1)
            raise AttributeError(
                f"--{option} {given}: {type(wrapped).__name__} has no such method"
                + (f"; did you mean {close[0]!r}?" if close else "")
            )
        name = given or _method_of(wrapped, usual)
        if name:
            self.driven["before each batch" if option == "start" else "after backward"] = (
                f"{name}()"
            )
        return name

    def _accumulation(self, wrapped: Any) -> str:
        """Return how several backwards of a step are run: `no_sync` or `each`."""
        declared = self.driver.declared.accumulation
        if declared or "no_sync" in self.driver.declared.unsupported:
            return declared or "each"
        return (
            "no_sync"
            if "accumulate" in self.driver.methods or _quiet(wrapped) is not None
            else "each"
        )


def _quiet(wrapped: Any) -> Callable[[], AbstractContextManager[object]] | None:
    """Return the context in which a wrapper runs a backward without communication, or None.

    A compiled wrapper is searched through the module that was compiled.
    """
    for holder in (wrapped, getattr(wrapped, "_orig_mod", None)):
        no_sync: Callable[[], AbstractContextManager[object]] | None = getattr(
            holder, "no_sync", None
        )
        if callable(no_sync):
            return no_sync
    if callable(getattr(wrapped, "set_requires_gradient_sync", None)):
        return lambda: _switched(wrapped.set_requires_gradient_sync)
    if isinstance(getattr(wrapped, "require_backward_grad_sync", None), bool):
        return lambda: _switched(lambda on: setattr(wrapped, "require_backward_grad_sync", on))
    return None


def _method_of(wrapped: Any, usual: tuple[str, ...]) -> str | None:
    """Return the first of some usual names that a wrapper has as a method."""
    return next(
        (
            name
            for name in usual
            if callable(getattr(type(wrapped), name, None))
            and not _required(getattr(type(wrapped), name))
        ),
        None,
    )


@lru_cache(maxsize=1024)
def _required(method: Any) -> tuple[str, ...]:
    """Return the names of the arguments that a method requires, `self` aside."""
    try:
        _, *rest = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(required(rest))


def _takes(method: Any, argument: str) -> bool:
    """Return whether a callable takes an argument of that name."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters)


def _trained(module: Any) -> list[Any]:
    parameters = getattr(module, "parameters", None)
    return list(parameters()) if callable(parameters) else []


def _gradient(parameter: Tensor) -> Tensor | None:
    """Return the optimizer's gradient: `.grad`, or `.main_grad` in the parameter's dtype."""
    if parameter.grad is not None:
        return parameter.grad
    main: Tensor | None = getattr(parameter, "main_grad", None)
    return None if main is None else main.view_as(parameter).to(parameter.dtype)


@contextmanager
def _switched(switch: Callable[[bool], object]) -> Iterator[None]:
    """Switch synchronisation off inside."""
    switch(False)  # noqa: FBT003 - a switch
    try:
        yield
    finally:
        switch(True)  # noqa: FBT003 - a switch


def _check_adapter(adapter: type, option: str) -> None:
    """Compare an adapter's methods with those that are called.

    Raises:
        LoadError: A method is misspelt, or does not take the arguments it will be given. The
            message shows the correct line.
    """
    own = [
        name
        for name, member in inspect.getmembers(adapter)
        if callable(member) and not name.startswith("_")
    ]
    for name in own:
        close = (
            []
            if name in METHODS
            else difflib.get_close_matches(name, [m for m in METHODS if m not in own], 1, 0.8)
        )
        if close:
            raise LoadError(
                f"{option}: {adapter.__name__} has a method {name!r}, which is never called; "
                "did you mean\n"
                f"    {_line(close[0])}"
            )
    for name in (name for name in own if name in METHODS):
        wanted = list(inspect.signature(METHODS[name]).parameters)
        method = inspect.signature(getattr(adapter, name))
        static = isinstance(inspect.getattr_static(adapter, name), staticmethod | classmethod)
        try:
            method.bind(*wanted[1:] if static else wanted)
        except TypeError as error:
            raise LoadError(
                f"{option}: {adapter.__name__}.{name}{method} cannot be called with the "
                f"arguments that it will get ({error}); expected\n"
                f"    {_line(name)}"
            ) from error


def _line(name: str) -> str:
    return f"def {name}({', '.join(inspect.signature(METHODS[name]).parameters)}): ..."
