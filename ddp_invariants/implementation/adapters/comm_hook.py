"""torch's DDP with a communication hook, as `--ddp comm_hook --ddp-arg hook=package.module.hook`."""

import importlib
from collections.abc import Callable
from typing import Any, ClassVar


class CommHook:
    """A model that DDP has wrapped, with a communication hook.

    Args:
        hook: The communication hook; a member of `torch.distributed.BuiltinCommHookType` is one of
            DDP's C++ code.
        make_state: Makes the hook's state from a process group. Without it, the process group is
            the state, as `default_hooks` of torch expect.
    """

    declares: ClassVar[dict[str, object]] = {"supports": ["bucket_cap", "subgroup", "own_buffers"]}

    def __init__(self, hook: Any, make_state: Callable[[Any], Any] | None = None) -> None:
        self.hook, self.make_state = hook, make_state

    def wrap(self, module: Any, context: Any) -> object:
        """Wrap the model, and register the hook with a state of its own."""
        given: dict[str, Any] = {}
        if context.bucket_cap is not None:
            given["bucket_cap_mb"] = context.bucket_cap / 2**20
        if context.own_buffers:
            given["broadcast_buffers"] = False
        library: Any = importlib.import_module("torch.nn.parallel")
        wrapped = library.DistributedDataParallel(module, process_group=context.group, **given)
        if type(self.hook).__name__ == "BuiltinCommHookType":
            wrapped._register_builtin_comm_hook(self.hook)
        else:
            state = self.make_state(context.group) if self.make_state else context.group
            wrapped.register_comm_hook(state, self.hook)
        made: object = wrapped
        return made
