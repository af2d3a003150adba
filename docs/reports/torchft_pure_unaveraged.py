"""torchft's PureDistributedDataParallel waits for no all-reduce, and averages nothing."""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel, PureDistributedDataParallel
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
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
for kind in (DistributedDataParallel, PureDistributedDataParallel):
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    model = kind(manager, module)
    optimizer = OptimizerWrapper(manager, torch.optim.SGD(model.parameters(), lr=1.0))
    optimizer.zero_grad()
    model(torch.full((1, 1), float(rank + 1))).sum().backward()
    dist.barrier()  # An all-reduce that is still running would end meanwhile.
    optimizer.step()
    print(
        f"rank {rank}, {kind.__name__}: step / lr {-module.weight.item()}, expected 1.5", flush=True
    )
dist.barrier()
os._exit(0)
