"""Wrappers that find tensors again by names that they have changed."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ddp_invariants.faults._start import broadcast
from ddp_invariants.faults.per_parameter import PerParameter as _PerParameter
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class KeepsNamesApart(_PerParameter):
    """Right: parameters are found again by names with a slash for each dot."""

    def _hook(self, parameter: nn.Parameter) -> None:
        if any(parameter is kept for kept in self._kept().values()):
            super()._hook(parameter)

    def _kept(self) -> dict[str, nn.Parameter]:
        return {self._key(name): each for name, each in self.module.named_parameters()}

    def _key(self, name: str) -> str:
        return name.replace(".", "/")


class KeysWithUnderscores(KeepsNamesApart):
    """Parameters are kept by their names with underscores for dots, so that block_layer replaces
    block.layer (similar: kazukiosawa/asdl#36).

    GRAD-1: never reduced.
    """

    def _key(self, name: str) -> str:
        return name.replace(".", "_")


class KeysInLowerCase(KeepsNamesApart):
    """Parameters are kept by their names in lower case, so that Layer0 replaces layer0
    (no public incident found).

    GRAD-1: never reduced.
    """

    def _key(self, name: str) -> str:
        return name.lower()


class KeepsLayersOnly(KeepsNamesApart):
    """The parameters are collected from the children of the module, without its own
    (no public incident found).

    GRAD-1: never reduced.
    """

    def _kept(self) -> dict[str, nn.Parameter]:
        return {
            f"{prefix}/{name}": each
            for prefix, child in self.module.named_children()
            for name, each in child.named_parameters()
        }


class KeysWithoutDots(_PerParameter):
    """The parameters to broadcast are kept by their names without dots, so that blocklayer replaces
    block.layer (no public incident found).

    INIT-1: never broadcast.
    """

    def _start(self) -> None:
        named = self.module.named_parameters()
        kept = {name.replace(".", ""): parameter for name, parameter in named}
        broadcast([*kept.values(), *self.module.buffers()], self.group)


class StripsTheUsersPrefix(_Reference):
    """Names in a saved state lose every prefix `module.`, also that of a submodule which the user
    calls so (similar: openvinotoolkit/model_preparation_algorithm#90).

    STATE-1: other names than the module's; or MOD-2: the wrapper does not act as the module.
    """

    def state_dict(self, **kwargs: Any) -> Any:
        return {_stripped(name): value for name, value in super().state_dict(**kwargs).items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        own = self.module.state_dict()
        renamed = {name: state_dict[_stripped(name)] for name in own}
        return self.module.load_state_dict(renamed, strict, assign)


def _stripped(name: str) -> str:
    """Return a name without the prefix of a wrapper, or of several wrappers within one another."""
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name
