"""The state of torchdata's StatefulDistributedSampler lacks the epoch."""

from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

sampler = StatefulDistributedSampler(range(8), num_replicas=1, rank=0, shuffle=True)
sampler.set_epoch(1)
indices = iter(sampler)
first = [next(indices) for _ in range(3)]
state = sampler.state_dict()
rest = list(indices)

resumed = StatefulDistributedSampler(range(8), num_replicas=1, rank=0, shuffle=True)
resumed.load_state_dict(state)
print(f"state {state}, indices before it {first}")
print(f"resumed with {list(resumed)}, expected {rest}")
