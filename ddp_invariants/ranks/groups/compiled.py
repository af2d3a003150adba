"""The harness's code that runs inside a compiled program, kept from the compiler.

A program under `torch.compile` calls its process groups while the compiler looks at each new frame.
It must not compile the frames of observed groups: it takes process groups for C++ objects, and fails
at the first attribute of a Python one.
"""

from types import FunctionType
from typing import Any

import torch

_EVAL_FRAME: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def never_compiled(kind: type) -> type:
    """Keep the compiler from the methods of a class, and from all that they call; return the class."""
    for method in vars(kind).values():
        function = getattr(method, "fget", getattr(method, "__func__", method))
        if isinstance(function, FunctionType):
            _skip(function)
    return kind


def _skip(function: FunctionType) -> None:
    # Older versions of torch have other names, and compile nothing of a foreign frame.
    if not hasattr(_EVAL_FRAME, "set_code_exec_strategy"):
        return
    skip = _EVAL_FRAME._FrameAction.SKIP
    _EVAL_FRAME.set_code_exec_strategy(
        function.__code__, _EVAL_FRAME._FrameExecStrategy(skip, skip)
    )
