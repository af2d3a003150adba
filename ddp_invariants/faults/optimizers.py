"""Optimizers that share their state among the ranks, under the reference's wrapper.

Source: Rajbhandari et al. 2020, arXiv:1910.02054.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ddp_invariants.faults._outer import Around


class Owned(Around):
    """Right: parameters go round the ranks, and each rank updates its own and broadcasts them."""

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        self._group = process_group
        self._owners: dict[int, int] = {}
        super().__init__(params, optimizer_class, **options)

    def inside(self, group: dict[str, Any]) -> dict[str, Any]:
        """Give each parameter of a new group an owner, and return this rank's parameters alone."""
        for parameter in group["params"]:
            owner = len(self._owners) % dist.get_world_size(self._group)
            self._owners.setdefault(id(parameter), owner)
        rank = dist.get_rank(self._group)
        return {**group, "params": [p for p in group["params"] if self._owners[id(p)] == rank]}

    def step_inner(self, inner: Optimizer) -> None:
        """Update this rank's parameters, and hand them out."""
        inner.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                self._hand_out(parameter)

    def _hand_out(self, parameter: Tensor) -> None:
        # A parameter without an owner is one of `DividesOnce`.
        if id(parameter) not in self._owners or not parameter.numel():
            return
        value = parameter.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(value, group=self._group, group_src=self._owners[id(parameter)])
        parameter.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state."""
        assert self.inner is not None
        return {"groups": super().state_dict(), "own": self.inner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from this rank's part of a state."""
        assert self.inner is not None
        super().load_state_dict(state_dict["groups"])
        self.inner.load_state_dict(state_dict["own"])


class DividesOnce(Owned):
    """The parameters are divided among the ranks once, so those of a group that is added later have
    no owner (no public incident found).

    PARAM-3: no update was made.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.inner is None:
            super().add_param_group(param_group)
        else:
            Optimizer.add_param_group(self, param_group)


class NewGroupsKeepTheirRate(Owned):
    """The optimizer hands on new options of the groups that it was made with, and not those of a
    group that is added later, whose learning rate stays as it was (no public incident found).

    PARAM-3: the learning rate of the first step.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = len(self.param_groups)

    def hand_options_on(self, inner: Optimizer) -> None:
        kept = [mine["lr"] for mine in inner.param_groups[self._first :]]
        super().hand_options_on(inner)
        for mine, rate in zip(inner.param_groups[self._first :], kept, strict=True):
            mine["lr"] = rate


class StartsAnewWithAGroup(Owned):
    """The optimizer makes its inner one anew when a group is added, which loses momentum (no public
    incident found).

    LIVE-5: the optimizer's state of the steps before was lost.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.inner is None:
            super().add_param_group(param_group)
            return
        usual: Any = type(self.inner)
        self.inner = None
        super().add_param_group(param_group)
        self.inner = usual([self.inside(group) for group in self.param_groups])


class LooksAtTheFirstGroup(Owned):
    """New options of the groups are handed on only when the first group has another learning rate (no
    public incident found).

    PARAM-3: the learning rate of the first step.
    """

    def hand_options_on(self, inner: Optimizer) -> None:
        if self.param_groups[0]["lr"] != inner.param_groups[0]["lr"]:
            super().hand_options_on(inner)


class HandsOnNumbers(Owned):
    """The optimizer hands on new options that are plain numbers, and so no betas, which are a pair (no
    public incident found).

    LIVE-5: that of the first step.
    """

    def hand_options_on(self, inner: Optimizer) -> None:
        for group, mine in zip(self.param_groups, inner.param_groups, strict=True):
            mine.update({name: each for name, each in group.items() if isinstance(each, float)})


class HandsOnNewObjects(Owned):
    """The optimizer hands on options that have become other objects, and so no learning rate in a tensor
    that the program fills in place (no public incident found).

    PARAM-3: the learning rate of the first step.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._known: dict[int, dict[str, Any]] = {}
        super().__init__(*args, **options)

    def inside(self, group: dict[str, Any]) -> dict[str, Any]:
        self._known[id(group)] = dict(group)
        return {**super().inside(group), "lr": float(group["lr"])}

    def hand_options_on(self, inner: Optimizer) -> None:
        for group, mine in zip(self.param_groups, inner.param_groups, strict=True):
            known = self._known[id(group)]
            for name, value in group.items():
                if name != "params" and value is not known[name]:
                    mine[name] = known[name] = value


class HandsOnRatesAlone(Owned):
    """The optimizer hands on new learning rates, and no other options that the program changes (no
    public incident found).

    LIVE-5: that of the first step.
    """

    def hand_options_on(self, inner: Optimizer) -> None:
        for group, mine in zip(self.param_groups, inner.param_groups, strict=True):
            mine["lr"] = group["lr"]
