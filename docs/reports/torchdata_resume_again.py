"""A state that torchdata's StatefulDistributedSampler saves before its first index is empty."""

from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def new() -> StatefulDistributedSampler:
    """Return a sampler of eight samples on one rank."""
    return StatefulDistributedSampler(range(8), num_replicas=1, rank=0, shuffle=False)


sampler = new()
indices = iter(sampler)
first = [next(indices) for _ in range(3)]
state = sampler.state_dict()

second = new()
second.load_state_dict(state)
again = second.state_dict()

third = new()
third.load_state_dict(again)
print(f"state {state}, saved again {again}")
print(f"resumed with {list(third)}, expected {list(indices)}")
