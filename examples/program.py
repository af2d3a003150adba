"""A complete data-parallel training program: the smallest that has all its parts.

    torchrun --nproc_per_node 2 examples/program.py
    python examples/program.py --spawn 2

Idea: the structure of torch's own DDP tutorials; `DistributedDataParallel` is Li et al. 2020,
arXiv:2006.15704.

Claims: ranks start equal (DDP broadcasts), see different samples (the sampler deals them, anew each
epoch), and stay equal (DDP averages gradients). The loss reported is the global one,
all_reduce(loss) / W. The checkpoint is written by rank 0 alone and holds the wrapped module, so
that it loads without DDP.

Verdict: right. N is divisible by W * B up to W = 4 here; otherwise the sampler repeats samples, and
the mean of the ranks' mean losses counts those twice.
"""

import argparse
import gc
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not marked so for type checkers
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, FEATURES, HIDDEN, BATCH, EPOCHS = 96, 8, 16, 8, 5
LEARNING_RATE = 0.05


def make_dataset() -> TensorDataset:
    """The same N samples on every rank: a linear map and some noise."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    targets = inputs.sum(1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1, generator=generator)
    return TensorDataset(inputs, targets)


def make_module() -> nn.Module:
    """Two layers, from this process's random numbers."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def global_mean(value: Tensor) -> float:
    """The mean of the ranks' values."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(checkpoint: Path | None) -> None:
    """What every rank runs once the process group stands."""
    rank = dist.get_rank()
    torch.manual_seed(
        rank
    )  # Different on purpose: equal parameters come from DDP's broadcast, not from luck.
    model = DistributedDataParallel(make_module())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    dataset = make_dataset()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # Without it every epoch has the first one's order.
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss_of_epoch = global_mean(
            torch.stack(losses).mean()
        )  # A collective: on all ranks, also those that do not report.
        if rank == 0:
            sys.stdout.write(
                f"epoch {epoch}: loss {loss_of_epoch:.4f} over {dist.get_world_size()} ranks\n"
            )
    if checkpoint is not None and rank == 0:
        torch.save(model.module.state_dict(), checkpoint)


def leave() -> None:
    """Leave the process group, and its threads with it.

    The DDP wrapper, by now garbage in a reference cycle, still holds the group. Unless it is
    collected first, gloo's threads outlive the group, and one that lets go of a tensor while the
    interpreter ends aborts the process.
    """
    gc.collect()
    dist.destroy_process_group()


def one_of_spawned(rank: int, world_size: int, port: int, checkpoint: Path | None) -> None:
    """A spawned rank: meets the others at the parent's store."""
    store = TCPStore("localhost", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    train(checkpoint)
    leave()


def main() -> None:
    """Start ranks, or be the one that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a two-layer MLP data-parallel.")
    parser.add_argument(
        "--spawn",
        type=int,
        metavar="W",
        help="start W ranks; otherwise torchrun has started this one",
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="where rank 0 saves the trained module"
    )
    arguments = parser.parse_args()
    if arguments.spawn is not None:
        # The store keeps the port from the moment it is chosen; one that was merely found free
        # could be taken by then.
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        spawn(
            one_of_spawned,
            (arguments.spawn, store.port, arguments.checkpoint),
            nprocs=arguments.spawn,
        )
    elif "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(arguments.checkpoint)
        leave()
    else:
        parser.error("start it with torchrun, or give --spawn W")


if __name__ == "__main__":
    main()
