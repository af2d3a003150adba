"""A SpeechBrain `Brain`, as its `fit` calls it."""

import importlib
import sys
from types import ModuleType
from typing import Any

# PyPI's torchaudio does not load without CUDA. The Brain does not need it.
sys.modules["torchaudio"] = ModuleType("torchaudio")


class Brain:
    """A model and an optimizer that a `Brain` has set up for fitting.

    Args:
        options: Run options, as from the command line of an experiment.
    """

    def __init__(self, **options: Any) -> None:
        self.options = {"device": "cpu", "distributed_backend": "gloo", **options}

    def wrap(self, module: Any, context: Any) -> object:
        """Make the Brain, and let it wrap the model and make the optimizer."""
        library: Any = importlib.import_module("speechbrain")
        self.brain = library.Brain(
            {"model": module}, opt_class=context.optimizer, run_opts=self.options
        )
        self.brain.on_fit_start()
        return self.brain.modules["model"], self.brain.optimizer

    def accumulate(self, wrapped: Any) -> Any:
        """Return the Brain's context without synchronisation."""
        del wrapped
        return self.brain.no_sync()
