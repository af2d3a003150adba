"""Uses of the wrapped module besides training (`situations.module_use`)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddp_invariants.implementation.adapter import Context
from ddp_invariants.implementation.declarations import SHARDED
from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.later_group import LaterGroup
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.parts import modes, present
from ddp_invariants.ranks.training.recorder import Record
from ddp_invariants.ranks.training.setup import Setup
from ddp_invariants.ranks.training.shaped import described, tensors_in
from ddp_invariants.situations import module_use

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(module_use.ModuleUse) is not None)
class ModuleUse(Effect):
    """Uses of the module under test and of its twin, noted side by side."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        found = self.case.get(module_use.ModuleUse)
        assert found is not None
        self.uses = found.uses
        self.rows: list[list[Any]] = []
        self.events: dict[str, list[str]] = {"wrapped": [], "twin": []}
        self.parts: dict[str, nn.Module] = {}
        self.stepper: Stepper | None = None
        self.later = LaterGroup(lambda every: every[: (len(every) + 1) // 2])

    def on_replica(self, replica: Replica) -> None:
        """Register hooks before the replica is wrapped, and keep its parts by their names."""
        self.parts = dict(replica.named_modules())
        if "hooks" in self.uses:
            _hook(replica, self.events["wrapped"])

    def on_twin(self, twin: Replica) -> None:
        """Register the same hooks on the twin."""
        if "hooks" in self.uses:
            _hook(twin, self.events["twin"])

    def on_optimizer(self, context: Context) -> Context:
        """Have the optimizer made without half of its parameters, if the program adds them."""
        return self.later.within(self.setup, context) if "groups" in self.uses else context

    def begin(self, stepper: "Stepper") -> None:
        """Use the wrapper and its optimizer before the first step."""
        self.stepper = stepper
        trained, twin = stepper.trained, stepper.twin.module
        stepper.position.phase = "the use of the wrapper as a module"
        if "names" in self.uses:
            self._note("names", 0, _names(trained.wrapped, twin), _names(twin, twin))
        if "modes" in self.uses:
            got = _modes(trained.wrapped, present(self.parts, trained.replica))
            self._note("modes", 0, got, _modes(twin, dict(twin.named_modules())))
            stepper.in_training_again()
        if "groups" in self.uses:
            self.later.begin(stepper)
            self.later.add(lambda _: True)

    def before_step(self, stepper: "Stepper", indices: Any) -> None:
        """Exchange the state, and train copies of the module and its twin, before the second step."""
        step = stepper.position.step
        if "states" in self.uses and step == 1:
            stepper.position.phase = "the exchange of its state before it"
            got, expected = _exchanged(stepper)
            if expected:
                self._note("states", step, got, expected)
        if "copies" in self.uses and step == 1:
            stepper.position.phase = "the training of a copy before it"
            inputs = stepper.program.batch(indices, step)[0]
            got = _train_copy(stepper.trained.replica, inputs)
            self._note("copies", step, got, _train_copy(stepper.twin.module, inputs))

    @contextmanager
    def around_evaluation(self, stepper: "Stepper", inputs: Tensor) -> Iterator[None]:
        """Note the events of an evaluation, and those of an evaluation of the twin."""
        self._forget()
        yield
        if "hooks" in self.uses:
            twin = stepper.twin.module
            modes = [(module, module.training) for module in twin.modules()]
            twin.eval()
            stepper.program.forward(twin, inputs)
            for module, training in modes:
                module.training = training
            self._note("hooks", stepper.position.step, self.events["wrapped"], self.events["twin"])

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Forget the events of forwards between steps."""
        del stepper, indices
        self._forget()

    def after_update(self, record: Record) -> None:
        """Note the events of a step."""
        del record
        assert self.stepper is not None
        if "hooks" in self.uses and self.stepper.twin.followed:
            step = self.stepper.position.step
            self._note("hooks", step, self.events["wrapped"], self.events["twin"])

    def end(self, record: Record) -> None:
        """Hand over the notes."""
        record.facts.setdefault("uses", []).extend(self.rows)

    def _forget(self) -> None:
        for events in self.events.values():
            events.clear()

    def _note(self, use: str, step: int, got: list[str], expected: list[str]) -> None:
        self.rows.append([use, step, list(got), list(expected)])


def _hook(module: nn.Module, events: list[str]) -> None:
    """Note each forward and backward of a module and its children, with shapes."""
    for name, part in module.named_modules():
        called = name or "the module"
        part.register_forward_pre_hook(partial(_before, events, called))
        part.register_forward_hook(partial(_after, events, called))
        part.register_full_backward_hook(partial(_backward, events, called))


def _before(events: list[str], called: str, _module: nn.Module, args: Any) -> None:
    events.append(f"before the forward of {called} on {_shapes(args)}")


def _after(events: list[str], called: str, _module: nn.Module, _args: Any, result: Any) -> None:
    events.append(f"after the forward of {called} with {_shapes(result)}")


def _backward(
    events: list[str], called: str, _module: nn.Module, of_inputs: Any, of_outputs: Any
) -> None:
    events.append(f"backward of {called} from {_shapes(of_outputs)} to {_shapes(of_inputs)}")


def _shapes(value: Any) -> str:
    """Return the shapes of the tensors in a value."""
    return ", ".join(str(list(tensor.shape)) for tensor in tensors_in(value)) or "no tensor"


def _names(wrapped: Any, module: nn.Module) -> list[str]:
    """Return the names that a wrapper lists, without the prefix that all of the module's have.

    A wrapper may save the module's own state, and so have a prefix in its other lists alone.
    """
    parameters = [name for name, _ in wrapped.named_parameters()]
    buffers, state = [name for name, _ in wrapped.named_buffers()], list(wrapped.state_dict())
    own = [name for name, _ in module.named_parameters()]
    listed = {name for name, _ in module.named_buffers()}
    prefix, of_state, kept = _prefix(parameters, own), _prefix(state, own), {*module.state_dict()}
    return [
        f"{kind}: {name.removeprefix(before)}"
        for kind, names, before in (
            ("parameters", parameters, prefix),
            # A wrapper may have buffers of its own, and save more than the module has.
            ("buffers", [name for name in buffers if name.removeprefix(prefix) in listed], prefix),
            (
                "the state",
                [name for name in state if name.removeprefix(of_state) in kept],
                of_state,
            ),
        )
        for name in names
        if name.startswith(before)
    ]


def _prefix(names: list[str], own: list[str]) -> str:
    """Return what stands before most names of the module's parameters in a list."""
    return max(
        (name.removesuffix(own[0]) for name in names if name.endswith(own[0])),
        key=lambda prefix: len({*names}.intersection(prefix + name for name in own)),
        default="",
    )


def _modes(wrapped: Any, parts: dict[str, nn.Module]) -> list[str]:
    """Return the modules that a wrapper's `eval`, `train` and `apply` reach, and what they return."""
    rows = []
    for call, switch in (
        ("eval()", wrapped.eval),
        ("train(True)", partial(wrapped.train, True)),  # noqa: FBT003 - as a user calls it
        ("train(False)", partial(wrapped.train, False)),  # noqa: FBT003 - likewise
        ("train()", wrapped.train),
    ):
        rows.append(f"{call} returns {_returned(switch(), wrapped)}")
        rows += [f"after {call} {mode}" for mode in modes(parts)]
    visited: list[nn.Module] = []
    rows.append(f"apply() returns {_returned(wrapped.apply(visited.append), wrapped)}")
    rows += [
        f"apply() visits {name or 'the module'} {sum(seen is m for seen in visited)} times"
        for name, m in parts.items()
    ]
    return rows


def _returned(result: Any, asked: Any) -> str:
    """Return in words what a module's method returned.

    A program that assigns the result (`ddp = ddp.eval()`) fails at once on None, but it trains another
    module without noticing.
    """
    if result is None or result is asked:
        return "the module it was called on, or nothing"
    return f"another module, of type {type(result).__name__}"


def _train_copy(module: Replica, inputs: Tensor) -> list[str]:
    """Alter and train a deep copy of a module, and return what that did to both."""
    held = list(_state(module))
    copy = deepcopy(module)
    copy.at_forward = None
    for layer in copy.drawing:
        layer.given = None  # The twin's, for its last batch; this one may have another size.
    rows = [f"the copy holds the module's values: {_values(copy) == _values(module)}"]
    training = module.training
    copy.eval()
    rows.append(f"the module's mode stays after the copy's eval(): {module.training == training}")
    with torch.no_grad():
        for tensor in copy.parameters():
            tensor.add_(1)
    rows.append(f"the module is unchanged once the copy is altered: {list(_state(module)) == held}")
    copy.zero_grad()
    outputs = [tensor for tensor in tensors_in(copy(inputs)) if tensor.requires_grad]
    torch.stack([tensor.abs().double().sum() for tensor in outputs]).sum().backward()
    rows += [
        f"the copy's {name} has {'no' if parameter.grad is None else 'a'} gradient"
        for name, parameter in copy.named_parameters()
    ]
    rows.append(f"the module is unchanged once the copy is trained: {list(_state(module)) == held}")
    return rows


@torch.no_grad()
def _exchanged(stepper: "Stepper") -> tuple[list[str], list[str]]:
    """Load zeros for the wrapper's parameters, and then its own state.

    What else a state has is left as it is: a wrapper may add entries, or broadcast buffers. So are
    parameters that it saves in another form, such as those of low precision.

    Returns:
        The parameters that the wrapper saves after each of both, and those that were loaded; none
        if a right wrapper may save every one of them in another form.

    Raises:
        NotImplementedError: The wrapper has no state that holds a parameter of float32 as it is.
    """
    declared, trained = stepper.setup.declared, stepper.trained
    if declared.zero == SHARDED or declared.main:
        raise NotImplementedError("ranks share the parameters, or the optimizer has copies of them")
    if trained.stateful is not trained.wrapped:
        raise NotImplementedError("the wrapper saves and loads no state")
    own = deepcopy(trained.wrapped.state_dict())
    parameters = dict(stepper.twin.module.named_parameters(remove_duplicate=False))
    held = _held(own, parameters)
    if not any(held.values()):
        if any(parameter.dtype == torch.float32 for parameter in parameters.values()):
            raise NotImplementedError("the state holds no parameter as it is")
        return [], []
    zeros = deepcopy(own)
    for prefix, names in held.items():  # A state may hold a module twice, or averages beside it.
        for name in names:
            zeros[prefix + name].zero_()
    prefix = _of_the_module(own, held, trained.replica)
    got, expected = list[str](), list[str]()
    for loaded, state in (("zeros", zeros), ("its own state", own)):
        for into, each in ((expected, state), (got, _loaded(trained.wrapped, state))):
            into += [
                f"{name} after {loaded}: {_begun(each[prefix + name])}" for name in held[prefix]
            ]
    return got, expected


def _held(state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the parameters that a state holds as they are, by what stands before their names."""
    first = next(iter(parameters))
    prefixes = [key.removesuffix(first) for key in state if f".{key}".endswith(f".{first}")]
    return {
        prefix: [
            name
            for name, parameter in parameters.items()
            if _has_the_form(state.get(prefix + name), parameter)
        ]
        for prefix in prefixes
    }


def _of_the_module(state: Mapping[str, Any], held: dict[str, list[str]], module: nn.Module) -> str:
    """Return what stands before the names of the module's own parameters in a state.

    It is what first stands before values that the module has now, or before any if none has them.
    """
    named = module.named_parameters(remove_duplicate=False)
    own = {name: parameter.detach() for name, parameter in named}
    filled = [prefix for prefix, names in held.items() if names]
    return next(
        (
            prefix
            for prefix in filled
            if all(
                name in own and described(state[prefix + name].detach()) == described(own[name])
                for name in held[prefix]
            )
        ),
        filled[0],
    )


def _begun(tensor: Tensor) -> str:
    """Return a tensor in words, with its first element; the sign of a zero does not show."""
    tensor = tensor + 0 if tensor.is_floating_point() or tensor.is_complex() else tensor
    first = f", begins with {tensor.flatten()[0].item()}" if tensor.numel() else ""
    return described(tensor) + first


def _has_the_form(saved: Any, parameter: Tensor) -> bool:
    return type(saved) in (Tensor, nn.Parameter) and (saved.shape, saved.dtype) == (
        parameter.shape,
        parameter.dtype,
    )


def _loaded(wrapped: Any, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load a state into a wrapper, and return the state that it saves then."""
    wrapped.load_state_dict(deepcopy(state))
    saved: Mapping[str, Any] = wrapped.state_dict()
    return saved


def _values(module: nn.Module) -> list[str]:
    """Return the parameters and buffers of a module in words."""
    return [described(tensor) for tensor in (*module.parameters(), *module.buffers())]


def _state(module: nn.Module) -> Iterator[str]:
    """Yield the parameters, buffers and gradients of a module in words."""
    yield from _values(module)
    for parameter in module.parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.layout != torch.strided:
            gradient = gradient.to_dense()
        yield described(gradient)
