"""A timm `ClassificationTask`, prepared for distributed training."""

import importlib
from typing import Any

import timm_samplers  # noqa: F401 - it lets timm load without CUDA


class Task:
    """A model within a task, which wraps it.

    Args:
        options: Options that the task hands to torch's DDP.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, module: Any, context: Any) -> object:
        """Make the task, and return the model that it trains."""
        del context
        library: Any = importlib.import_module("timm.task")
        task = library.ClassificationTask(
            module, criterion=lambda outputs, _: outputs, verbose=False
        )
        wrapped: object = task.prepare_distributed(**self.options).trainable_module
        return wrapped
