"""The groups of parameters of an optimizer, with their options (`situations.group_options`)."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.situations.group_options import GroupOptions

_NUMBER = "number_of_group"
"""The name under which a parameter keeps the number of its group."""


class ParameterGroups:
    """A maker of groups of parameters with the options of a case.

    Attributes:
        made: True once groups were made.
    """

    def __init__(self, case: TrainingCase, found: GroupOptions) -> None:
        second, usual = found.of_second(case.optimizer).arguments, case.optimizer.arguments
        self._options = {name: value for name, value in second.items() if value != usual[name]}
        self.made = False

    @staticmethod
    def mark(module: nn.Module) -> None:
        """Mark every second parameter of a module as one of the second group."""
        for number, parameter in enumerate(module.parameters()):
            vars(parameter)[_NUMBER] = number % 2

    def __call__(self, parameters: Iterable[Tensor]) -> list[dict[str, Any]]:
        """Return the groups of some parameters.

        A rank that trains no parameter may have a zero in its place.

        Raises:
            NotImplementedError: A tensor is no parameter of the module.
        """
        self.made = True
        groups: list[dict[str, Any]] = [{"params": []}, {"params": [], **self._options}]
        for parameter in parameters:
            number = vars(parameter).get(_NUMBER)
            # A distributed tensor is asked for no value: a rank may hold no element of it.
            other = type(parameter.data) is not Tensor or parameter.numel() > 1
            if number is None and (other or parameter.any()):
                raise NotImplementedError(
                    "the optimizer gets other tensors than the module's parameters, "
                    "which have no groups"
                )
            groups[number or 0]["params"].append(parameter)
        return [group for group in groups if group["params"]]
