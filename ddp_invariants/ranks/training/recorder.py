"""A rank's notes of a run: tensors as raw bits, exceptions and structure as plain data."""

import traceback
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_Slot = tuple[str, str, list[int]] | tuple[str, None, None]


MEMORY = 4 << 30
"""The bytes that a rank may allocate; no case of a default run takes a hundredth of this."""
MOST_EVIDENCE = 64 << 20
"""The bytes that a rank may note in a case; no case of a thorough run notes a hundredth of this."""


class TooMuchEvidence(Exception):
    """The end of a run that notes too much; it proves nothing about the implementation."""


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
                raise TooMuchEvidence(
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


def _bits(tensor: Tensor) -> bytes:
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)  # numpy has no bfloat16; only the bits are noted.
    # `force` also resolves a tensor that is kept as the conjugate of another.
    bits: bytes = tensor.numpy(force=True).tobytes()
    return bits


def structure(module: nn.Module) -> list[list[Any]]:
    """Return a row for each name of a module's parameters and buffers.

    A row is [name, dtype, shape, requires_grad, first name of the same tensor, "parameter" or
    "buffer"].
    """
    first: dict[Tensor, str] = {}
    rows = []
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            rows.append(
                [
                    name,
                    str(tensor.dtype)[6:],
                    list(tensor.shape),
                    tensor.requires_grad,
                    first.setdefault(tensor, name),
                    kind,
                ]
            )
    return rows


def warned(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Return warnings as plain data: each with its category and first line, once."""
    return sorted(
        {
            f"{warning.category.__name__}: {str(warning.message).partition(chr(10))[0][:200]}"
            for warning in caught
        }
    )


def exception_data(error: BaseException, phase: str, step: int) -> dict[str, Any]:
    """Return an exception as plain data. `str` of a foreign exception may itself raise."""
    try:
        message = str(error).encode(errors="backslashreplace").decode()
    except BaseException as unprintable:  # noqa: BLE001 - any code may stand in a foreign __str__
        message = f"(its message raised {type(unprintable).__name__})"
    if isinstance(error, MemoryError) or "can't allocate memory" in message:
        message = f"{message[:1900]} (a rank may take {MEMORY >> 30} GiB)".lstrip()
    return {
        "phase": phase,
        "step": step,
        "type": type(error).__name__,
        "message": message[:2000],
        "traceback": "".join(traceback.format_tb(error.__traceback__))[-4000:],
    }
