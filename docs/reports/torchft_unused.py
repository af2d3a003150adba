"""torchft's DistributedDataParallel leaves no gradient on a rank that does not use a parameter."""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

logging.disable(logging.CRITICAL)
dist.init_process_group("gloo")
rank = dist.get_rank()
# Each rank is a replica of its own, with a store of its own and the first rank's lighthouse.
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2) if rank == 0 else None
address = [lighthouse.address() if lighthouse else None]
dist.broadcast_object_list(address)
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
    load_state_dict=lambda _: None,
    state_dict=dict,
    min_replica_size=2,
    use_async_quorum=False,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    lighthouse_addr=address[0],
    replica_id=f"replica_{rank}",
    hostname="127.0.0.1",
    init_sync=False,
)


class Model(nn.Module):
    """A layer that every rank uses, and a layer that the first rank does not use."""

    def __init__(self):
        super().__init__()
        self.both, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.both(x) if rank == 0 else self.both(x) + self.second(x)


for name, wrap in (
    ("torch", lambda model: parallel.DistributedDataParallel(model, find_unused_parameters=True)),
    ("torchft", lambda model: DistributedDataParallel(manager, model)),
):
    model = Model()
    wrapped = wrap(model)
    manager.start_quorum()
    wrapped(torch.ones(1, 1)).sum().backward()
    gradient = model.second.weight.grad
    print(
        f"rank {rank}, {name}: gradient {None if gradient is None else gradient.item()}, expected 0.5",
        flush=True,
    )
dist.barrier()
os._exit(0)
