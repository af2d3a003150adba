"""The facts of a sampler's laziness and lengths, and of the parts of torch that a case uses."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.surface.fact import Ask, facts

LENGTHS = ((101, 8), (16_777_217, 3), (50_000_003, 7), (2**31 + 11, 4))
"""Lengths and world sizes: beyond the whole numbers of float32, and beyond 32 bits."""


def of_samplers(make: SamplerMaker) -> dict[str, str]:
    """Return the facts of a sampler; none if its ranks need a group."""
    if make.scatters:
        return {}

    def made(samples: int, ranks: int = 2, rank: int = 0, *, drop_last: bool = False) -> Any:
        return make(
            samples, ranks, rank, shuffle=True, seed=0, drop_last=drop_last, batch_size=1, epoch=0
        )

    def length(samples: int, ranks: int, *, drop_last: bool) -> str:
        with make.surroundings(0, ranks):
            return str(len(made(samples, ranks, drop_last=drop_last)))

    def iterator() -> str:
        with make.surroundings(0, 2):
            sampler = made(8)
            return f"{type(iter(sampler)).__name__}, another: {iter(sampler) is not sampler}"

    def epoch_read() -> str:
        with make.surroundings(0, 2):
            sampler = made(64)
            before = list(sampler)
            running = iter(sampler)
            sampler.set_epoch(1)
            return "when iter is called" if list(running) == before else "at the first index"

    asked: dict[str, Ask] = {
        "iterator of the sampler": iterator,
        "the moment when the sampler reads its epoch": epoch_read,
    }
    asked |= {
        f"length of the sampler for {samples} samples, {ranks} ranks, drop_last={drop_last}": (
            partial(length, samples, ranks, drop_last=drop_last)
        )
        for samples, ranks in LENGTHS
        for drop_last in (False, True)
        if make.source_kind in ("dataset", "size")
    }
    return facts(asked)


def of_torch() -> dict[str, str]:
    """Return the facts of optimizers, of clipping, of the loss scaler and of the loader."""
    data = TensorDataset(torch.ones(3))
    asked: dict[str, Ask] = {
        "AMP: state of GradScaler": lambda: torch.amp.GradScaler("cpu").state_dict(),
        "AMP: gradients unscaled twice": lambda: _scaled(2),
        "AMP: a step without backward": lambda: _scaled(0),
        "AMP: the scale after an infinite gradient": _overflowed,
        "DataLoader with shuffle and sampler": lambda: DataLoader(
            data, shuffle=True, sampler=SequentialSampler(range(2))
        ),
        "DataLoader of batches": lambda: [len(batch[0]) for batch in DataLoader(data, 2)],
        **_of_clipping(),
    }
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        asked |= _of_optimizer(kind)
    return facts(asked)


def _of_optimizer(kind: Any) -> dict[str, Ask]:
    name = kind.__name__

    def defaults() -> str:
        return str(sorted(kind([_trained()], lr=0.5).defaults.items()))

    def state() -> str:
        parameter = _trained()
        optimizer = kind([parameter], lr=0.5)
        optimizer.step()
        optimizer.zero_grad()
        keys = {key for value in optimizer.state.values() for key in value}
        return f"{sorted(keys)}, gradient after zero_grad {parameter.grad}"

    def given(**arguments: Any) -> str:
        kind([_trained()], **arguments)
        return "taken"

    wrong = {"lr": -1.0, "weight_decay": -1.0, "eps": -1.0, "betas": (2.0, 2.0), "momentum": -1.0}
    asked: dict[str, Ask] = {
        f"refusal of {name}({argument}={value})": partial(given, **{argument: value})
        for argument, value in wrong.items()
    }
    return asked | {
        f"defaults of {name}": defaults,
        f"state of {name}": state,
        f"refusal of {name} without parameters": lambda: kind([], lr=0.5),
        f"refusal of {name}(nesterov=True)": lambda: given(nesterov=True),
    }


def _of_clipping() -> dict[str, Ask]:
    clip = nn.utils.clip_grad_norm_
    return {
        "clipping: the norm of 3 and 4": lambda: f"{clip([_trained(3, 4)], 1.0):.1f}",
        "clipping: no parameters": lambda: clip([], 1.0),
        "clipping: a gradient that is None": lambda: clip([nn.Parameter(torch.ones(2))], 1.0),
        "clipping: NaN": lambda: clip([_trained(float("nan"), 1)], 1.0),
        "clipping: NaN, with an error": lambda: clip(
            [_trained(float("nan"), 1)], 1.0, error_if_nonfinite=True
        ),
        "clipping: an iterator": lambda: clip(iter([_trained(3, 4)]), 10.0),
        "clipping: a norm below 0": lambda: f"{clip([_trained(3, 4)], -1.0):.1f}",
    }


def _trained(*gradient: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(len(gradient) or 2))
    parameter.grad = torch.tensor(gradient or (1.0, 2.0)).float()
    return parameter


def _scaled(times: int) -> str:
    scaler, parameter = torch.amp.GradScaler("cpu"), _trained()
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    for _ in range(times):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    return "done"


def _overflowed() -> str:
    scaler, parameter = torch.amp.GradScaler("cpu", init_scale=4.0), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    loss: Tensor = scaler.scale(parameter.sum() * float("inf"))
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    return f"{scaler.get_scale()}, parameter {parameter.item()}"
