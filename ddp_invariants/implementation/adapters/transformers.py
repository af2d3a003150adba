"""The `Trainer` of Hugging Face's transformers, as `--ddp transformers_trainer`."""

import importlib
import tempfile
from typing import Any

from ddp_invariants.implementation.adapters import preload
from ddp_invariants.implementation.adapters.accelerate import Accelerate, forget_the_group

preload("transformers.trainer")


class Trainer(Accelerate):
    """A model and an optimizer that a `Trainer` on the CPU has prepared, and its accelerator.

    The calls are those of the Trainer's training loop for a model that is not sharded. The forward
    and the loss are the program's, as in a `Trainer` with a `compute_loss` of its own.

    Args:
        arguments: Arguments of `TrainingArguments`, as from `--ddp-arg`.
    """

    def wrap(self, module: Any, context: Any) -> object:
        """Prepare the model and its optimizer."""
        library: Any = importlib.import_module("transformers")
        forget_the_group()
        with tempfile.TemporaryDirectory() as folder:  # The Trainer makes its folder at once.
            arguments = library.TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
                **self.arguments,
            )
            optimizer = context.optimizer(module.parameters())
            trainer = library.Trainer(module, arguments, optimizers=(optimizer, None))
        self.accelerator = trainer.accelerator
        prepared: object = self.accelerator.prepare(trainer.model, trainer.optimizer)
        return prepared

    def clip(self, wrapped: Any, optimizer: Any, norm: float) -> object:
        """Clip the gradients by the Trainer's accelerator."""
        del optimizer
        clipped: object = self.accelerator.clip_grad_norm_(wrapped.parameters(), norm)
        return clipped
