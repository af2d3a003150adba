"""A complete data-parallel training program: the smallest that has all its parts.

    torchrun --nproc_per_node 2 examples/program.py
    python examples/program.py --spawn 2

Idea: The structure of torch's own DDP tutorials. `DistributedDataParallel` is from Li et al. 2020,
arXiv:2006.15704.

Claims: Ranks start equal (DDP broadcasts). They see different samples (the sampler shards them,
anew in each epoch). They stay equal (DDP averages gradients). The reported loss is the global one,
all_reduce(loss) / W. Rank 0 alone writes the checkpoint. It holds the wrapped module, so it loads
without DDP.

Verdict: right. Here W * B divides N up to W = 4. Otherwise the sampler repeats samples, and the
mean of the ranks' mean losses counts those samples twice.
"""

import argparse
import gc
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, FEATURES, HIDDEN, BATCH, EPOCHS = 96, 8, 16, 8, 5
LEARNING_RATE = 0.05


def make_dataset() -> TensorDataset:
    """Return the same N samples on every rank: a linear map and some noise."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    targets = inputs.sum(1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1, generator=generator)
    return TensorDataset(inputs, targets)


def make_module() -> nn.Module:
    """Return two layers, initialised from this process's random numbers."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def global_mean(value: Tensor) -> float:
    """Return the mean of the ranks' values."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(checkpoint: Path | None) -> None:
    """Train on this rank; the process group already exists."""
    rank = dist.get_rank()
    # Different on purpose: equal parameters must come from DDP's broadcast, not from equal seeds.
    torch.manual_seed(rank)
    model = DistributedDataParallel(make_module())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    dataset = make_dataset()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # Without it every epoch has the order of the first.
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        # A collective: all ranks call it, even those that do not report.
        loss_of_epoch = global_mean(torch.stack(losses).mean())
        if rank == 0:
            sys.stdout.write(
                f"epoch {epoch}: loss {loss_of_epoch:.4f} over {dist.get_world_size()} ranks\n"
            )
    if checkpoint is not None and rank == 0:
        torch.save(model.module.state_dict(), checkpoint)


def leave() -> None:
    """Leave the process group and end its threads.

    The DDP wrapper is garbage in a reference cycle by now, but it still holds the group. If it is
    not collected first, gloo's threads outlive the group. A thread that then frees a tensor while
    the interpreter ends aborts the process.
    """
    gc.collect()
    dist.destroy_process_group()


def one_of_spawned(rank: int, world_size: int, port: int, checkpoint: Path | None) -> None:
    """Run a spawned rank, which meets the other ranks at the parent's store."""
    store = TCPStore("localhost", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    train(checkpoint)
    leave()


def main() -> None:
    """Start the ranks, or run the rank that torchrun started."""
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
        # The store holds its port from the start. A port that was only found to be free could be
        # taken by another process before its use.
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
