"""The calls that drive a DDP around the steps of one case, chosen by their usual names.

A method that an adapter defines (adapter.py) replaces the usual call.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.declarations import SHARDED
from ddp_invariants.implementation.names import BUILT_ON, OPTIMIZER
from ddp_invariants.ranks.driving.arguments import BUCKET_CAPS, NAMED, OPTIMIZERS, PARAMETERS
from ddp_invariants.ranks.driving.imports import required
from ddp_invariants.ranks.driving.known import known_within
from ddp_invariants.ranks.driving.settings import UPDATES

if TYPE_CHECKING:
    from ddp_invariants.ranks.driving.ddp import Driver

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
    "average_grads",
    "reduce_grads",
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
RECOVERIES = ("reset_iter_state",)
"""Methods called after all ranks have caught an exception, if the wrapper has one."""
BROADCASTS = ("broadcast_params", "broadcast_parameters", "sync_params", "sync_parameters")
"""Methods called once after wrapping if the wrapper has one."""

QUIET = ("no_sync", "set_requires_gradient_sync", "require_backward_grad_sync")
"""Ways to run a wrapper's backward without communication; the first one it has is used."""

NOT_A_MODEL = (
    "{} returned an object that cannot be called like a model; expected a module, or an adapter "
    "with wrap"
)


_NEVER_FIRST = "the implementation makes or takes the optimizer when it wraps the module, or after"


class Drive:
    """The calls of one case: the adapter's methods if it has them, else the usual calls.

    Attributes:
        driven: The calls found by name, for the explanation: the moment and the call.
    """

    def __init__(
        self, driver: "Driver", context: Context, replica: nn.Module, adapter: Any
    ) -> None:
        self.driver, self.context, self.replica = driver, context, replica
        self.brought: Any = None
        self._made_first: Any = None
        self._making = context
        self.driven: dict[str, str] = {}
        self._finish: str | None = None
        self._start: str | None = None
        self._have_own = set[int]()
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
        optimizer = self._optimizer(module, self._making) if call.takes_optimizer else None
        made = call(module, context, module, optimizer)
        if optimizer is not None and not isinstance(made, tuple):
            self.brought = optimizer
            self.driven[OPTIMIZER] = "the one that wrapping was given"
        return made

    def make_optimizer(self, wrapped: Any, context: Context) -> Any:
        if self.brought is not None:
            return self.brought
        return self._optimizer(wrapped, context)

    def make_optimizer_first(self) -> None:
        """Make the case's optimizer over the module's parameters before the module is wrapped.

        Raises:
            NotImplementedError: The implementation has an optimizer of its own, or wants one that
                is made after wrapping.
        """
        call, declared = self.driver.call, self.driver.declared
        own = self.driver.optimizer is not None or (call is not None and call.takes_optimizer)
        if own or "make_optimizer" in self.driver.methods or declared.zero == SHARDED:
            raise NotImplementedError(_NEVER_FIRST)
        self._made_first = self.context.optimizer(_trained(self.replica))

    def _optimizer(self, wrapped: Any, context: Context) -> Any:
        """Make the `--opt` optimizer under test, else the case's, over the trained parameters."""
        trained = _trained(wrapped) or _trained(self.replica)
        call = self.driver.optimizer
        if call is None:
            # Used once: parameters that are assigned later need an optimizer of their own.
            made, self._made_first = self._made_first, None
            return made or context.optimizer(trained)
        if call.first in ("model", "module"):
            return call(
                wrapped,
                context,
                wrapped,
                context.optimizer(trained) if call.takes_optimizer else None,
            )
        if call.first in OPTIMIZERS:
            return call(context.optimizer(trained), context, wrapped)
        if call.first in NAMED:
            return call(list(self.replica.named_parameters()), context, wrapped)
        return call(context.grouped(trained), context, wrapped)

    def before_batch(self, wrapped: Any, _optimizer: Any) -> object:
        return getattr(wrapped, self._start)() if self._start else None

    def zero_grad(
        self,
        _wrapped: Any,
        optimizer: Any,
        set_to_none: bool,  # noqa: FBT001 - as an adapter's
    ) -> object:
        if not _takes(optimizer.zero_grad, "set_to_none"):
            if set_to_none:
                return optimizer.zero_grad()
            raise NotImplementedError(f"{type(optimizer).__name__}.zero_grad takes no set_to_none")
        return optimizer.zero_grad(set_to_none=set_to_none)

    def recover(self, wrapped: Any) -> object:
        method = _method_of(wrapped, RECOVERIES)
        return getattr(wrapped, method)() if method else None

    def zero_grad_of_module(self, wrapped: Any, set_to_none: bool) -> None:  # noqa: FBT001 - as above
        """Clear gradients by the method that every `torch.nn.Module` has.

        Raises:
            NotImplementedError: The wrapper has no such method, or gradients are kept elsewhere, too.
        """
        kind, method = type(wrapped).__name__, getattr(wrapped, "zero_grad", None)
        if not callable(method) or not _takes(method, "set_to_none"):
            raise NotImplementedError(f"{kind} has no zero_grad with set_to_none")
        kept = any(getattr(p, "main_grad", None) is not None for p in self.replica.parameters())
        inherited = getattr(type(wrapped), "zero_grad", None) is nn.Module.zero_grad
        if self.runs_backward(wrapped) or (kept and inherited):
            raise NotImplementedError(f"{kind} may keep gradients that zero_grad does not clear")
        wrapped.zero_grad(set_to_none=set_to_none)

    def accumulate(self, wrapped: Any) -> AbstractContextManager[object]:
        quiet = _quiet(wrapped)
        return nullcontext() if quiet is None else quiet()

    def join(self, wrapped: Any, _optimizer: Any) -> AbstractContextManager[object]:
        entered: AbstractContextManager[object] = wrapped.join()
        return entered

    def forward(self, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    def backward(self, wrapped: Any, _optimizer: Any, loss: Tensor) -> object:
        if self._engine("backward", wrapped):
            return wrapped.backward(loss)
        return loss.backward()

    def after_backward(self, wrapped: Any, optimizer: Any) -> object:
        if self._finish:
            getattr(wrapped, self._finish)()
        if self.driver.after is not None:
            self.driver.after(wrapped, self.context, wrapped, optimizer)
        return None

    def gradients(self, _wrapped: Any) -> Mapping[str, Tensor | None]:
        self._note_own_gradients()
        return {
            name: self._gradient(parameter) for name, parameter in self.replica.named_parameters()
        }

    def _note_own_gradients(self) -> None:
        """Note the parameters whose `.grad` is set beside a `.main_grad`."""
        self._have_own |= {
            id(p)
            for p in self.replica.parameters()
            if p.grad is not None and getattr(p, "main_grad", None) is not None
        }

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the optimizer's gradient: `.grad`, or `.main_grad` in the parameter's dtype.

        An implementation that sets `.grad` as well may keep an old `.main_grad` of a parameter that
        is unused, or frozen.
        """
        main: Tensor | None = getattr(parameter, "main_grad", None)
        if main is None or parameter.grad is not None or id(parameter) in self._have_own:
            return parameter.grad
        self.driven["gradients"] = "in .main_grad"
        return main.view_as(parameter).to(parameter.dtype)

    def clip(self, wrapped: Any, optimizer: Any, norm: float) -> object:
        own = getattr(wrapped, "clip_grad_norm_", None)
        if not callable(own):
            return nn.utils.clip_grad_norm_(list(self.replica.parameters()), norm)
        first = next(iter(_names_taken(own) or ()), "")
        if first in PARAMETERS:
            return own(list(self.replica.parameters()), norm)
        return own(optimizer, norm) if first in OPTIMIZERS else own(norm)

    def runs_backward(self, wrapped: Any) -> bool:
        """Return whether the wrapper is an engine that runs backward for its own model.

        An adapter may call the engine's method. Its own method may also serve all models.
        """
        return _can_be_called(wrapped, "backward", 1)

    def step(self, wrapped: Any, optimizer: Any) -> object:
        if self._engine("step", wrapped):
            return wrapped.step()
        lent = self._lend_main_gradients()
        stepped = optimizer.step()
        for parameter in lent:
            parameter.grad = None
        return stepped

    def step_with_closure(
        self, wrapped: Any, optimizer: Any, closure: Callable[[], object]
    ) -> object:
        if self._engine("step", wrapped):
            raise NotImplementedError(
                f"{type(wrapped).__name__} makes the step by itself, and takes no closure"
            )
        if not _takes_closure(optimizer.step):
            raise NotImplementedError(f"{type(optimizer).__name__}.step takes no closure")
        lent: list[Tensor] = []

        def with_main_gradients() -> object:
            for parameter in lent:  # A closure that is called again computes its own gradients.
                parameter.grad = None
            loss = closure()
            lent.extend(self._lend_main_gradients())
            return loss

        stepped = optimizer.step(closure=with_main_gradients)
        for parameter in lent:
            parameter.grad = None
        return stepped

    def _lend_main_gradients(self) -> list[Tensor]:
        """Copy `.main_grad` to `.grad` where only the former exists.

        Returns:
            The parameters that got a gradient. It is for the step only: autograd must not add to
            it.
        """
        self._note_own_gradients()
        lent: list[Tensor] = []
        for parameter in self.replica.parameters():
            gradient = self._gradient(parameter)
            if parameter.grad is None and gradient is not None:
                parameter.grad = gradient.clone()
                lent.append(parameter)
        return lent

    def _engine(self, method: str, wrapped: Any) -> bool:
        """Return whether the wrapper is an engine that runs backward, and perhaps the step, itself.

        No nn.Module has these methods. An engine's backward takes the loss, and its step takes
        nothing. A method of these names that needs more is something else, such as the backward of
        a pipeline's stage.
        """
        taken = {"backward": 1, "step": 0}
        if not all(_can_be_called(wrapped, name, taken[name]) for name in ("backward", method)):
            return False
        self.driven[method] = f"{method}() of the wrapper"
        return True

    def train_step(
        self, parameters: Mapping[str, Any], inputs: Tensor, targets: Tensor, context: Context
    ) -> object:
        raise NotImplementedError  # Called only if the adapter defines it.

    def teardown(self, _context: Context) -> object:
        return None

    # Start and wrapping.

    def begin(self, context: Context | None = None) -> tuple[Any, Any]:
        """Set up and wrap, and return the object to be called and the optimizer.

        Args:
            context: The facts with which the optimizer is made; None for those of the case.

        Raises:
            NotImplementedError: The optimizer makes another update than the case's.
            TypeError: Wrapping returned an object that cannot be trained.
        """
        update = self.driver.declared.update
        if update in UPDATES and self.context.optimizer_class is not UPDATES[update]:
            raise NotImplementedError(f"it makes the updates of {UPDATES[update].__name__} alone")
        self._making = context or self.context
        self.setup(self.context)
        made: Any = self.wrap(self.replica, self.context)
        if isinstance(made, tuple) and len(made) >= 2:
            made, self.brought = made[0], made[1]
        if self.brought is not None and OPTIMIZER not in self.driven:
            self._require_optimizer(made)
            self.driven[OPTIMIZER] = "the one that wrapping returned"
            if self.driver.optimizer is not None and not (
                self.driver.call and self.driver.call.takes_optimizer
            ):
                raise TypeError("wrapping returned an optimizer of its own, so --opt has no effect")
        if self._made_first is not None and self.brought is not None:
            raise NotImplementedError(_NEVER_FIRST)
        # Test `is None`, not truth, since a wrapper's len() may raise.
        wrapped = self.replica if made is None else made
        if not callable(wrapped) and "forward" not in self.driver.methods:
            raise TypeError(NOT_A_MODEL.format(self.driver.ddp.name))
        broadcast = _method_of(wrapped, BROADCASTS)
        if broadcast:
            getattr(wrapped, broadcast)()
            self.driven["after wrapping"] = f"{broadcast}()"
        ddp = self.driver.ddp
        if "before_batch" not in self.driver.methods:
            self._start = self._named("start", wrapped, ddp.start, STARTERS)
        if "after_backward" not in self.driver.methods:
            self._finish = self._named("finish", wrapped, ddp.finish, FINISHERS)
        self.driven["accumulation"] = self._accumulation(wrapped)
        self._note_driven(wrapped)
        return wrapped, self.make_optimizer(wrapped, self._making)

    def _require_optimizer(self, wrapped: Any) -> None:
        """Check that what wrapping returned after the model is an optimizer.

        Raises:
            TypeError: Nothing has the calls of one.
        """
        for name in ("zero_grad", "step"):
            owners = self.brought, wrapped
            called = any(callable(getattr(owner, name, None)) for owner in owners)
            if name not in self.driver.methods and not called:
                raise TypeError(
                    f"wrapping returned a {type(self.brought).__name__} without {name} after the "
                    "model, expected an optimizer"
                )

    def _note_driven(self, wrapped: Any) -> None:
        """Note the calls that the wrapper itself decides."""
        if recovery := _method_of(wrapped, RECOVERIES):
            self.driven["after a caught exception"] = f"{recovery}()"
        known = known_within(wrapped, self.driver.ddp.name)
        if known:
            self.driven[BUILT_ON] = ", ".join(known)
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
    return _signature_takes(getattr(method, "__func__", method), argument)


@lru_cache(maxsize=1024)
def _signature_takes(method: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters)


def _takes_closure(step: Any) -> bool:
    """Return whether a step has a parameter named `closure`, as those of torch's optimizers."""
    names = _names_taken(step)
    return names is None or "closure" in names


def _names_taken(call: Any) -> list[str] | None:
    """Return the names of a callable's parameters; None if they cannot be read."""
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return None


def _trained(module: Any) -> list[Any]:
    parameters = getattr(module, "parameters", None)
    return list(parameters()) if callable(parameters) else []


def _can_be_called(wrapped: Any, method: str, arguments: int) -> bool:
    """Return whether an object's class has a method that can be called with so many arguments."""
    if not callable(getattr(type(wrapped), method, None)):
        return False
    try:
        inspect.signature(getattr(wrapped, method)).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # Its parameters cannot be read.
        return True
    return True


@contextmanager
def _switched(switch: Callable[[bool], object]) -> Iterator[None]:
    """Switch synchronisation off inside."""
    switch(False)  # noqa: FBT003 - a switch
    try:
        yield
    finally:
        switch(True)  # noqa: FBT003 - a switch
