"""A replica whose forward takes inputs and returns outputs in several forms.

The forms are those of `situations.call_shape`. They wrap the same arithmetic.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddp_invariants.cases.layers import Model
from ddp_invariants.cases.numbers import FloatArray
from ddp_invariants.ranks.training.layer import CPU
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations.call_shape import InputForm, OutputForm


@dataclass
class Result:
    """The outputs of a forward as a dataclass.

    Attributes:
        logits: The outputs that enter the loss.
        hidden: A tensor that does not.
    """

    logits: Tensor
    hidden: Tensor


class Pair(NamedTuple):
    """The outputs of a forward as a namedtuple.

    Attributes:
        hidden: A tensor that does not enter the loss.
        logits: The outputs that do.
    """

    hidden: Tensor
    logits: Tensor


@dataclass
class Counted:
    """A tensor as a dataclass with a field that the constructor does not take.

    Attributes:
        x: The tensor.
        rows: Its first dimension.
    """

    x: Tensor
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.x)


class Single(NamedTuple):
    """The inputs of a forward as a namedtuple."""

    x: Tensor


class Attributes(dict[str, Any]):
    """A dict of which each value is an attribute, too, as of a tokenizer's or a model's result."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ShapedReplica(Replica):
    """A replica whose forward has the form of the micro-step.

    Attributes:
        form: The form of the outputs.
        gain: The factor of the outputs in a call that does not name it; None stands for no factor.
        criterion: The loss of outputs, for the form `loss`; None where the batch has no targets.
        calls: For each forward, the received arguments and the returned result in words.
    """

    form: OutputForm = "plain"
    gain: float = 1.0
    criterion: Callable[[Tensor], Tensor] | None = None

    def __init__(self, model: Model, values_P: FloatArray, device: torch.device = CPU) -> None:
        super().__init__(model, values_P, device)
        self.calls: list[tuple[str, str]] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Take inputs of any form, and return outputs in the form of the micro-step."""
        received = described_call(args, kwargs)
        outputs = super().forward(inputs_in(args, kwargs))
        gain = kwargs.get("gain", self.gain)
        outputs = outputs if gain in (None, 1) else outputs * gain
        result = (
            self.criterion(outputs)
            if self.form == "loss" and self.criterion is not None
            else packed(self.form, outputs, self._trained)
        )
        self.calls.append((received, described(result)))
        return result

    @property
    def _trained(self) -> Tensor:
        """The first parameter that is trained."""
        return next(parameter for parameter in self.parameters() if parameter.requires_grad)


_TIMES = (1.0e9 + 1, 1.0e-300)
"""Numbers that no narrower format holds, as seconds since 1970 are in float32."""
_IDS = (2**53 + 1, -1)
"""Numbers that no floating-point format holds, as hash keys are."""


def _beside_the_inputs() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.tensor([True, False]),
        torch.tensor(_TIMES, dtype=torch.float64),
        torch.tensor(_IDS),
    )


def arguments_for(form: InputForm, inputs: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call in a form. Shape (B, D in)."""
    half = (len(inputs) + 1) // 2
    mask, times, ids = (tensor.to(inputs.device) for tensor in _beside_the_inputs())
    held = {"x": inputs, "mode": "train"}
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "keyword": ((), {"x": inputs}),
        "option": ((inputs,), {"gain": 1.0}),
        "none": ((inputs,), {"gain": None}),
        "halves": ((inputs[:half], inputs[half:]), {}),
        "others": ((inputs, None, 3), {"mode": "train", "mask": mask}),
        "wide": ((inputs,), {"times": times, "ids": ids}),
        "number": ((inputs, torch.ones((), device=inputs.device, requires_grad=True)), {}),
        "tuple": (((inputs, 3),), {}),
        "list": (([None, inputs],), {}),
        "dict": ((held,), {}),
        "trained_dict": ((held,), {}),
        "namedtuple": ((Single(inputs),), {}),
        "record": ((Counted(inputs),), {}),
        "subclass": ((Attributes(x=inputs),), {}),
    }
    return calls.get(form, ((inputs,), {}))


def inputs_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the inputs among a call's arguments; the parts of a batch are put together.

    Raises:
        TypeError: There are none.
    """
    parts = [each for each in tensors_in([args, kwargs.get("x")]) if each.dim()]
    if not parts:
        raise TypeError("forward() got no inputs")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def packed(form: OutputForm, outputs: Tensor, parameter: Tensor) -> Any:
    """Return outputs in a form, most with a second tensor that enters no loss."""
    if form in ("plain", "loss"):
        return outputs
    half, hidden = (len(outputs) + 1) // 2, outputs * 2
    return {
        "tuple": (outputs, hidden),
        "twice": (outputs, outputs),
        "list": [hidden, outputs],
        "dict": {"hidden": hidden, "logits": outputs},
        "nested": {"states": ({"hidden": hidden}, [outputs]), "more": {}},
        "halves": (outputs[:half], outputs[half:]),
        "namedtuple": Pair(hidden, outputs),
        "dataclass": Result(outputs, hidden),
        "deep": {"hidden": hidden, "more": {"logits": outputs}},
        "mixed": (None, "mean", outputs, 3, hidden.detach(), True),
        "parameter": {"logits": outputs, "temperature": parameter},
        "one_tuple": (outputs,),
        "one_list": [outputs],
        "record": Counted(outputs),
        "subclass": Attributes(logits=outputs, hidden=hidden),
    }[form]


def outputs_in(form: OutputForm, result: Any) -> Tensor:
    """Return the outputs that enter the loss, also from a result that a wrapper has changed.

    Raises:
        TypeError: The result holds no tensor.
    """
    tensors = list(tensors_in(result))
    if not tensors:
        raise TypeError(f"the forward returned no tensor, but a {type(result).__name__}")
    if form == "halves":
        return torch.cat(tensors)
    at = 1 if form in ("list", "dict", "nested", "namedtuple", "deep") else 0
    return tensors[min(at, len(tensors) - 1)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists, dicts and dataclasses, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def described_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a call's arguments in words, and whether autograd records the call."""
    named = [f"{name}={described(value)}" for name, value in kwargs.items()]
    recorded = "" if torch.is_grad_enabled() else " without autograd"
    return f"({', '.join([*map(described, args), *named])}){recorded}"


def described(value: Any) -> str:
    """Return a value in words: types, names, shapes and a digest of each tensor's bits."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return _tensor(value)
    if is_dataclass(value):
        parts = [f"{each.name}={described(getattr(value, each.name))}" for each in fields(value)]
        return f"{kind}({', '.join(parts)})"
    if isinstance(value, dict):
        parts = [f"{key!r}: {described(part)}" for key, part in value.items()]
        return f"{kind}({', '.join(parts)})"
    if isinstance(value, list | tuple):
        return f"{kind}({', '.join(map(described, value))})"
    return repr(value)[:80]


def _tensor(tensor: Tensor) -> str:
    """Return a tensor in words."""
    held = tensor.detach().resolve_conj().resolve_neg()
    # A copy: a tensor of one element with an odd stride calls itself contiguous.
    held = held.clone(memory_format=torch.contiguous_format).reshape(-1)
    bits = held.view(torch.uint8).cpu().numpy().tobytes() if held.numel() else b""
    digest = hashlib.blake2b(bits, digest_size=6).hexdigest()
    grad = ", requires grad" if tensor.requires_grad else ""
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}{grad} #{digest}"
