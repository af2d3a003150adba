"""The strategy `ddp` of Lightning's Trainer, as `--ddp lightning`."""

import importlib
from typing import Any, ClassVar

from ddp_invariants.implementation.adapters import preload

preload("lightning.pytorch")


class Lightning:
    """A `LightningModule` with automatic optimization, driven by the strategy of a Trainer.

    The calls are those of the Trainer's fitting loop. Each forward is a training step that the
    strategy sends through the wrapper.

    Args:
        arguments: Arguments of Lightning's `DDPStrategy`, as from `--ddp-arg`.
    """

    # The environment of torchrun, which the Trainer is given here, reads its variables.
    declares: ClassVar[dict[str, object]] = {"unsupported": ("no_environment",)}

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def wrap(self, module: Any, context: Any) -> object:
        """Set up the strategy for fitting, and return the model and the optimizer that it keeps."""
        library: Any = importlib.import_module("lightning.pytorch")
        states: Any = importlib.import_module("lightning.pytorch.trainer.states")
        environments: Any = importlib.import_module("lightning.pytorch.plugins.environments")

        class Fitted(library.LightningModule):  # type: ignore[misc]  # The class is known only now.
            """The module, whose training step is a forward."""

            def __init__(self) -> None:
                super().__init__()
                self.module = module

            def training_step(self, inputs: Any, named: Any) -> object:
                """Return the module's outputs."""
                outputs: object = self.module(*inputs, **named)
                return outputs

            validation_step = training_step

            def configure_optimizers(self) -> object:
                """Return the optimizer of the case."""
                made: object = context.optimizer(self.module.parameters())
                return made

        trainer = library.Trainer(
            accelerator="cpu",
            devices=context.world_size,
            strategy=library.strategies.DDPStrategy(**self.arguments),
            plugins=[environments.TorchElasticEnvironment()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        fitted = Fitted()
        self.strategy = trainer.strategy
        self.strategy.connect(fitted)
        self.strategy.setup_environment()
        fitted.trainer = trainer
        trainer.state.fn = states.TrainerFn.FITTING
        self.strategy.setup(trainer)
        return _redirected(self.strategy), fitted.optimizers()

    def backward(self, wrapped: Any, optimizer: Any, loss: Any) -> object:
        """Run backward by the strategy."""
        del wrapped
        ended: object = self.strategy.backward(loss, optimizer)
        return ended

    def accumulate(self, wrapped: Any) -> Any:
        """Return the strategy's context without synchronisation."""
        del wrapped
        return self.strategy.block_backward_sync()


def _redirected(strategy: Any) -> object:
    """Return a module that calls the strategy's step, and has the wrapper as its only child."""
    nn: Any = importlib.import_module("torch.nn")

    class Redirected(nn.Module):  # type: ignore[misc]  # The class is known only now.
        """The strategy's wrapper, called by its steps."""

        def __init__(self) -> None:
            super().__init__()
            self.wrapper = strategy.model

        def forward(self, *inputs: Any, **named: Any) -> object:
            """Run a step of the mode that the module is in."""
            step = strategy.training_step if self.training else strategy.validation_step
            outputs: object = step(inputs, named)
            return outputs

        def state_dict(self, *arguments: Any, **options: Any) -> object:
            """Return the state of the `LightningModule`, which is what a checkpoint holds."""
            state: object = strategy.lightning_module.state_dict(*arguments, **options)
            return state

        def load_state_dict(self, *arguments: Any, **options: Any) -> object:
            """Load a state into the `LightningModule`."""
            keys: object = strategy.lightning_module.load_state_dict(*arguments, **options)
            return keys

    return Redirected()
