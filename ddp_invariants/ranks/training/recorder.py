"""A rank's notes of a run: tensors as raw bits, exceptions and structure as plain data."""

import re
import traceback
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.ranks.training.origins import first, origin

_Slot = tuple[str, str, list[int]] | tuple[str, None, None]


_WRAPPERS = re.compile(r"(?<![^.])(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
"""The parts of a name that torch's wrappers of a layer add to it, and take out of a state's names."""
MEMORY = 4 << 30
"""The bytes that a rank may allocate; no case of a default run takes a hundredth of this."""
MOST_EVIDENCE = 64 << 20
"""The bytes that a rank may note in a case; no case of a thorough run notes a hundredth of this."""


class EvidenceError(Exception):
    """The end of a run that cannot note its evidence; it proves nothing about the implementation."""


class Record:
    """One rank's notes: tensors as raw bits by moment and step, everything else as plain data.

    A record of tensors is [moment, step, layout, offset, size]; layouts (names, dtypes, shapes)
    repeat and are stored once. A missing tensor (a parameter without a gradient) is a slot without
    dtype.
    """

    def __init__(self) -> None:
        self.blob = bytearray()
        self.records: list[tuple[str, int, int, int, int]] = []
        self.layouts: dict[tuple[Any, ...], int] = {}
        self.facts: dict[str, Any] = {}

    def tensors(self, moment: str, step: int, named: Iterable[tuple[str, Tensor | None]]) -> None:
        """Note the bits, dtypes and shapes of tensors; the bits are in row-major order."""
        slots: list[tuple[Any, ...]] = []
        start = len(self.blob)
        for name, tensor in named:
            if tensor is None:
                slots.append((name, None, None))
                continue
            slots.append((name, tensor.dtype, tensor.shape))
            # Count bytes before the copy: an expanded tensor has few bytes until it is copied.
            if len(self.blob) + tensor.numel() * tensor.element_size() > MOST_EVIDENCE:
                raise EvidenceError(
                    f"{moment} {name!r} of shape {tuple(tensor.shape)} makes what this rank noted "
                    f"larger than {MOST_EVIDENCE >> 20} MiB"
                )
            self.blob += _bits(tensor)
        layout = self.layouts.setdefault(tuple(slots), len(self.layouts))
        self.records.append((moment, step, layout, start, len(self.blob) - start))

    def header(self) -> dict[str, Any]:
        """Return everything but the bits, ready for JSON."""
        layouts: list[list[_Slot]] = [
            [
                (name, None, None) if dtype is None else (name, str(dtype)[6:], list(shape))
                for name, dtype, shape in slots
            ]
            for slots in self.layouts
        ]
        return {"records": self.records, "layouts": layouts, "facts": self.facts}


def has_own_memory(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers lie in its own memory; a subclass may hold other tensors."""
    return type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


def plain_of(tensor: Tensor) -> Tensor:
    """Return a tensor whose bits numpy can read, for one of a subclass that has operations of its own.

    Examples are a DTensor, and the result of a functional collective that has not been waited for.
    """
    if has_own_memory(tensor):
        return tensor
    with torch.no_grad():
        whole = getattr(tensor, "full_tensor", tensor.detach)
        plain: Tensor = whole().clone()
    return plain


def _bits(tensor: Tensor) -> bytes:
    tensor = plain_of(tensor)
    if tensor.layout != torch.strided:
        tensor = _dense(tensor.detach())
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.detach().view(torch.int16)  # numpy has no bfloat16; the bits are noted.
    # `force` detaches, and resolves a tensor that is kept as the conjugate of another. numpy puts
    # the bytes in the order of rows, whatever the strides.
    bits: bytes = tensor.numpy(force=True).tobytes()
    return bits


def _dense(tensor: Tensor) -> Tensor:
    """Return a sparse tensor as a dense one.

    A tensor that says that it is coalesced has each index once, and is read so: SparseAdam, for one,
    would not add up the values of an index that comes twice.
    """
    if tensor.layout != torch.sparse_coo or not tensor.is_coalesced():
        return tensor.to_dense()
    dense = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    dense.index_put_(tuple(tensor.indices()), tensor.values())
    return dense.add_(0)  # As `to_dense` does, which turns a negative zero into zero.


class Structure:
    """A module's parameters and buffers, each in the order of registration.

    Attributes:
        rows: For each name of a tensor [name, dtype, shape, requires_grad, first name of the same
            tensor, "parameter" or "buffer"].
        parameters: The parameters, by their first names.
        buffers: The buffers, by their first names.
        by_name: All of them by all their names.
    """

    def __init__(self, module: nn.Module) -> None:
        self.rows: list[list[Any]] = []
        self.by_name: dict[str, Any] = {}
        self._first: dict[int, str] = {}
        self.parameters: list[tuple[str, nn.Parameter]] = self._entered(
            "parameter", module.named_parameters(remove_duplicate=False)
        )
        self.buffers: list[tuple[str, Tensor]] = self._entered(
            "buffer", module.named_buffers(remove_duplicate=False)
        )

    def _entered(self, kind: str, named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Add rows of one kind, and return its tensors by their first names."""
        once: dict[int, tuple[str, Any]] = {}
        for place, tensor in named:
            name = _WRAPPERS.sub("", place)
            self.by_name[name] = tensor
            once.setdefault(id(tensor), (name, tensor))
            self._first.setdefault(id(tensor), name)
            dtype, shape, first = str(tensor.dtype)[6:], list(tensor.shape), self._first[id(tensor)]
            self.rows.append([name, dtype, shape, tensor.requires_grad, first, kind])
        return list(once.values())


def warned(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Return warnings as plain data: each with its category and first line, once."""
    return sorted(
        {
            f"{warning.category.__name__}: {str(warning.message).partition(chr(10))[0][:200]}"
            for warning in caught
        }
    )


_FULL_DEVICE = ("CUDA out of memory", "failure 'out of memory'", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch, NCCL and cuBLAS say if a device has no memory left."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, numpy, torch or a device had no memory left."""
    message = _message(error)
    return (
        isinstance(error, MemoryError)
        or "can't allocate memory" in message
        or _is_of_a_full_device(message)
    )


def _is_of_a_full_device(message: str) -> bool:
    return any(words in message for words in _FULL_DEVICE)


def _message(error: BaseException) -> str:
    """Return an exception's message. `str` of a foreign exception may itself raise."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except BaseException as unprintable:  # noqa: BLE001 - any code may stand in a foreign __str__
        return f"(its message raised {type(unprintable).__name__})"


def exception_data(error: BaseException, phase: str, step: int) -> dict[str, Any]:
    """Return an exception as plain data."""
    message = _message(error)
    limited = is_out_of_memory(error)
    if limited:
        shared = _is_of_a_full_device(message)
        limit = "ranks share a device" if shared else f"a rank may take {MEMORY >> 30} GiB"
        message = f"{message[:1900]} ({limit})".lstrip()
    return {
        "phase": phase,
        "step": step,
        "type": type(error).__name__,
        "message": message[:2000],
        "traceback": "".join(traceback.format_tb(first(error).__traceback__))[-4000:],
        "limited": limited,
        **origin(error),
    }
