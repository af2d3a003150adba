"""Scripts of collectives that must have the same outcome over gloo and in the simulation."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from worlds import Notes, Script

_c10d: Any = torch._C._distributed_c10d
OPERATIONS: dict[str, Any] = {
    "SUM": ReduceOp.SUM,
    "AVG": ReduceOp.AVG,
    "PRODUCT": ReduceOp.PRODUCT,
    "MIN": ReduceOp.MIN,
    "MAX": ReduceOp.MAX,
    "BAND": ReduceOp.BAND,
    "BOR": ReduceOp.BOR,
    "BXOR": ReduceOp.BXOR,
}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def numbers(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return small whole numbers that differ between ranks."""
    return (torch.arange(count) + rank * 3 - 1).remainder(5).to(dtype)


def _wait(work: Any) -> Any:
    return work.wait()


def all_reduce(note: Notes) -> None:
    """Reduce tensors of every dtype by every operation."""
    for dtype in DTYPES:
        for name, operation in OPERATIONS.items():
            tensor = numbers(note.rank, 6, dtype)

            def reduce(tensor: Tensor = tensor, operation: Any = operation) -> Tensor:
                dist.all_reduce(tensor, operation)
                return tensor

            note(f"{name} {dtype}", reduce)


def premultiplied(note: Notes) -> None:
    """Reduce by operations that only NCCL knows."""
    tensor = numbers(note.rank, 3)
    operation = _c10d._make_nccl_premul_sum(2.0)
    note("PREMUL_SUM", lambda: dist.all_reduce(tensor, operation))


def strides(note: Notes) -> None:
    """Send tensors with strides by every collective."""
    rank, size = note.rank, note.size

    def mixed() -> Tensor:
        return numbers(rank, 6).view(2, 3).t()

    def empty(*shape: int) -> Tensor:
        return torch.zeros(*reversed(shape)).t()

    def call(name: str, outputs: Any, begin: Any) -> None:
        def run() -> Any:
            begin(outputs)
            return outputs

        note(name, run)

    makers: dict[str, Any] = {"plain": torch.zeros, "strided": empty}
    for kind, new in makers.items():
        call(
            f"all_gather {kind}",
            [new(3, 2) for _ in range(size)],
            lambda out: dist.all_gather(out, mixed()),
        )
        call(
            f"into {kind}", new(3 * size, 2), lambda out: dist.all_gather_into_tensor(out, mixed())
        )
        call(
            f"from plain into {kind}",
            new(3 * size, 2),
            lambda out: dist.all_gather_into_tensor(out, mixed().contiguous()),
        )
        call(
            f"gather {kind}",
            [new(3, 2) for _ in range(size)] if rank == 0 else None,
            lambda out: dist.gather(mixed(), out, 0),
        )
        call(
            f"scatter {kind}",
            new(3, 2),
            lambda out: dist.scatter(
                out, [mixed() + n for n in range(size)] if rank == 0 else None, 0
            ),
        )
        call(
            f"all_to_all_single {kind}",
            new(2 * size, 3),
            lambda out: dist.all_to_all_single(out, numbers(rank, 6 * size).view(3, -1).t()),
        )
        call(
            f"all_to_all {kind}",
            [new(3, 2) for _ in range(size)],
            lambda out: dist.all_to_all(out, [mixed()] * size),
        )
        call(f"coalesced {kind}", [mixed(), new(3, 2)], dist.all_reduce_coalesced)
    scalars = torch.zeros(size)
    call(
        "scalars into",
        scalars,
        lambda out: dist.all_gather_into_tensor(out, torch.tensor(float(rank))),
    )


def shapes(note: Notes) -> None:
    """Reduce a scalar, an empty tensor, and tensors with strides."""
    rank = note.rank
    whole = numbers(rank, 24).view(4, 6)
    for name, tensor in {
        "scalar": torch.tensor(float(rank)),
        "empty": torch.zeros(0),
        "transposed": whole.clone().t(),
        "columns": whole.clone()[:, ::2],
        "channels last": numbers(rank, 24).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "slice": whole.clone()[1:3],
        "leaf": whole.clone().requires_grad_(),
    }.items():
        for verb, send in {
            "all_reduce": dist.all_reduce,
            "broadcast": lambda tensor: dist.broadcast(tensor, note.size - 1),
            "reduce": lambda tensor: dist.reduce(tensor, 0),
        }.items():
            kept = (
                tensor
                if tensor.requires_grad
                else tensor.clone(memory_format=torch.preserve_format)
            )
            if name == "columns":
                kept = whole.clone()[:, ::2]

            def call(send: Any = send, kept: Tensor = kept, verb: str = verb) -> Any:
                send(kept)
                return kept if verb != "reduce" or rank == 0 else None

            note(f"{verb} {name}", call)


def sparse(note: Notes) -> None:
    """Reduce sparse tensors, also with ranks that have no or several values."""
    for name, count in {"same": 2, "uneven": note.rank + 1, "none": 0}.items():
        indices = (torch.arange(count) + note.rank).remainder(7).view(1, -1)
        tensor = torch.sparse_coo_tensor(indices, torch.ones(count, 3), (7, 3))

        def reduce(tensor: Tensor = tensor) -> Tensor:
            dist.all_reduce(tensor)
            return tensor

        note(name, reduce)
    tensor = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (4,))
    note("MAX", lambda: dist.all_reduce(tensor, ReduceOp.MAX))
    note("AVG", lambda: dist.all_reduce(tensor, ReduceOp.AVG))
    note("broadcast", lambda: dist.broadcast(tensor, 0))
    note("future", lambda: _async(dist.all_reduce(tensor, async_op=True)))


def _async(work: Any) -> Any:
    future = work.get_future()
    value = future.wait()
    return [value, future.done(), work.wait(), work.is_completed(), work.is_success()]


def coalesced(note: Notes) -> None:
    """Send several tensors by one call."""
    rank, size = note.rank, note.size
    pair = [numbers(rank, 3), numbers(rank + 1, 2)]
    note("all_reduce", lambda: dist.all_reduce_coalesced(pair))
    note("reduced", lambda: pair)
    mixed = [numbers(rank, 3), numbers(rank, 3, torch.float64)]
    note("all_reduce of two dtypes", lambda: dist.all_reduce_coalesced(mixed))
    lists = [[torch.zeros(3), torch.zeros(2)] for _ in range(size)]
    note("all_gather", lambda: dist.all_gather_coalesced(lists, pair))
    note("gathered", lambda: lists)

    def managed() -> Any:
        with dist.distributed_c10d._coalescing_manager() as manager:
            for tensor in pair:
                dist.all_reduce(tensor)
        return [pair, type(manager).__name__]

    def managed_later() -> Any:
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for tensor in pair:
                dist.all_reduce(tensor)
        manager.wait()
        return pair

    def managed_gather() -> Any:
        outputs = [torch.zeros(3 * size), torch.zeros(2 * size)]
        with dist.distributed_c10d._coalescing_manager():
            for output, tensor in zip(outputs, pair, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        return outputs

    def managed_scatter() -> Any:
        outputs = [torch.zeros(3), torch.zeros(2)]
        with dist.distributed_c10d._coalescing_manager():
            for output in outputs:
                dist.reduce_scatter_tensor(output, numbers(rank, len(output) * size))
        return outputs

    note("managed", managed)
    note("managed, asynchronous", managed_later)
    note("managed all_gather_into_tensor", managed_gather)
    note("managed reduce_scatter_tensor", managed_scatter)


def gathers(note: Notes) -> None:
    """Gather and scatter."""
    rank, size = note.rank, note.size
    mine = numbers(rank, 4)

    def all_gather(shapes: Any, own: Tensor) -> Any:
        outputs = [torch.zeros(shape) for shape in shapes]
        dist.all_gather(outputs, own)
        return outputs

    note("all_gather", lambda: all_gather([4] * size, mine))
    note("all_gather of strides", lambda: all_gather([(2, 2)] * size, mine.view(2, 2).t()))
    note("all_gather of other shapes", lambda: all_gather([(2, 2)] * size, mine))
    note("all_gather of too few", lambda: all_gather([4] * (size - 1), mine))
    note("all_gather of nothing", lambda: all_gather([0] * size, torch.zeros(0)))
    note("all_gather of scalars", lambda: all_gather([()] * size, torch.tensor(float(rank))))

    def into(count: int, own: Tensor) -> Any:
        output = torch.zeros(count)
        dist.all_gather_into_tensor(output, own)
        return output

    note("all_gather_into_tensor", lambda: into(4 * size, mine))
    note("all_gather_into_tensor, wrong size", lambda: into(4 * size + 1, mine))
    note("all_gather_into_tensor, stacked", lambda: _into_stacked(size, mine))
    note("all_gather_into_tensor, dtypes", lambda: into(4 * size, mine.double()))

    def gather(root: int, dtype: torch.dtype = torch.float32) -> Any:
        outputs = [torch.zeros(4, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(mine.to(dtype), outputs, root)
        return outputs

    for root in range(size):
        note(f"gather to {root}", lambda root=root: gather(root))  # type: ignore[misc]
    for dtype in DTYPES:
        note(f"gather {dtype}", lambda dtype=dtype: gather(0, dtype))  # type: ignore[misc]
        note(f"broadcast {dtype}", lambda dtype=dtype: dist.broadcast(mine.to(dtype), 0))  # type: ignore[misc]
    note(
        "gather with a list everywhere",
        lambda: dist.gather(mine, [torch.zeros(4)] * size, 0) if rank else None,
    )

    def scatter(root: int, own: Tensor) -> Any:
        parts = [numbers(part + 1, 4) for part in range(size)] if rank == root else None
        dist.scatter(own, parts, root)
        return own

    for root in range(size):
        note(f"scatter from {root}", lambda root=root: scatter(root, torch.zeros(4)))  # type: ignore[misc]


def _into_stacked(size: int, own: Tensor) -> Tensor:
    output = torch.zeros(size, len(own))
    dist.all_gather_into_tensor(output, own)
    return output


def scatters(note: Notes) -> None:
    """Reduce and scatter, by every operation."""
    rank, size = note.rank, note.size
    for name, operation in OPERATIONS.items():
        dtype = torch.int64 if name.startswith("B") else torch.float32

        def listed(operation: Any = operation, dtype: torch.dtype = dtype) -> Any:
            output = torch.zeros(3, dtype=dtype)
            dist.reduce_scatter(
                output, [numbers(rank + n, 3, dtype) for n in range(size)], operation
            )
            return output

        def single(operation: Any = operation, dtype: torch.dtype = dtype) -> Any:
            output = torch.zeros(3, dtype=dtype)
            dist.reduce_scatter_tensor(output, numbers(rank, 3 * size, dtype), operation)
            return output

        note(f"reduce_scatter {name}", listed)
        note(f"reduce_scatter_tensor {name}", single)

    def uneven() -> Any:
        output = torch.zeros(rank + 1)
        dist.reduce_scatter(output, [numbers(rank, n + 1) for n in range(size)])
        return output

    note("reduce_scatter, uneven", uneven)

    def later() -> Any:
        output = torch.zeros(3)
        work = dist.reduce_scatter_tensor(output, numbers(rank, 3 * size), async_op=True)
        return [_wait(work), output]

    note("reduce_scatter_tensor, asynchronous", later)


def exchanges(note: Notes) -> None:
    """Exchange different parts."""
    rank, size = note.rank, note.size

    def all_to_all(sizes_in: list[int], sizes_out: list[int]) -> Any:
        outputs = [torch.zeros(count) for count in sizes_out]
        dist.all_to_all(outputs, [numbers(rank + n, count) for n, count in enumerate(sizes_in)])
        return outputs

    note("all_to_all", lambda: all_to_all([2] * size, [2] * size))
    note(
        "all_to_all, uneven",
        lambda: all_to_all([rank + n for n in range(size)], [rank + n for n in range(size)]),
    )

    def single(output: Tensor, own: Tensor, outs: Any = None, ins: Any = None) -> Any:
        dist.all_to_all_single(output, own, outs, ins)
        return output

    splits = [rank + n for n in range(size)]
    rows = sum(splits)
    note("all_to_all_single", lambda: single(torch.zeros(size * 2), numbers(rank, size * 2)))
    note(
        "all_to_all_single of rows",
        lambda: single(torch.zeros(size, 3), numbers(rank, size * 3).view(size, 3)),
    )
    note("uneven", lambda: single(torch.zeros(rows), numbers(rank, rows), splits, splits))
    note(
        "uneven rows",
        lambda: single(torch.zeros(rows, 2), numbers(rank, rows * 2).view(rows, 2), splits, splits),
    )
    note(
        "splits that do not sum",
        lambda: single(torch.zeros(rows), numbers(rank, rows), splits, [rows] * size),
    )
    note("too few splits", lambda: single(torch.zeros(size), numbers(rank, size), [size], [size]))
    note("other dtype", lambda: single(torch.zeros(size), numbers(rank, size, torch.int64)))
    note("nothing", lambda: single(torch.zeros(0), torch.zeros(0), [0] * size, [0] * size))


def messages(note: Notes) -> None:  # noqa: C901 - one function for each way to send
    """Send messages from rank to rank."""
    rank, size = note.rank, note.size
    there, here = (rank + 1) % size, (rank - 1) % size

    def ring() -> Any:
        received = torch.zeros(3)
        if rank % 2 == 0:
            dist.send(numbers(rank, 3), there)
            source = dist.recv(received, here)
        else:
            source = dist.recv(received, here)
            dist.send(numbers(rank, 3), there)
        return [source, received]

    def isend() -> Any:
        received = torch.zeros(3)
        works = [dist.isend(numbers(rank, 3), there), dist.irecv(received, here)]
        waited = [work.wait() for work in works if work is not None]
        return [waited, received, [work.is_completed() for work in works if work is not None]]

    def batch() -> Any:
        received = torch.zeros(3)
        operations = [
            dist.P2POp(dist.irecv, received, here),
            dist.P2POp(dist.isend, numbers(rank, 3), there),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received

    def any_source() -> Any:
        if rank:
            dist.send(numbers(rank, 2), 0)
            return None
        received = [torch.zeros(2) for _ in range(size - 1)]
        sources = [dist.recv(tensor) for tensor in received]
        order = sorted(range(size - 1), key=sources.__getitem__)
        return [sorted(sources), [received[n] for n in order]]

    def tags() -> Any:
        first, second = torch.zeros(2), torch.zeros(2)
        works = []
        if rank == 0:
            works = [
                dist.isend(torch.tensor([1.0, 3.0]), 1, tag=1),
                dist.isend(torch.tensor([2.0, 4.0]), 1, tag=2),
            ]
        dist.barrier()
        if rank == 0:
            return [work.wait() for work in works if work is not None]
        if rank == 1:
            dist.recv(second, 0, tag=2)
            dist.recv(first, 0, tag=1)
        return [first, second]

    if size % 2 == 0:
        note("ring", ring)
    note("isend", isend)
    note("batch", batch)
    note("any source", any_source)
    note("tags", tags)
    note("strides", lambda: dist.send(torch.zeros(4, 4).t(), there))
    note("to itself", lambda: dist.send(torch.zeros(1), rank))
    note("from itself", lambda: dist.recv(torch.zeros(1), rank))


def larger_receive(note: Notes) -> None:
    """Receive fewer elements than there is room for."""
    if note.rank == 0:
        note("send", lambda: dist.send(numbers(1, 2), 1))
    if note.rank == 1:
        tensor = torch.zeros(4)
        note("receive", lambda: dist.recv(tensor, 0))
        note("received", lambda: tensor)


def barriers(note: Notes) -> None:
    """Meet at barriers."""
    note("barrier", dist.barrier)
    note("asynchronous", lambda: dist.barrier(async_op=True).wait())
    note("future", lambda: dist.barrier(async_op=True).get_future().wait())
    note("monitored", dist.monitored_barrier)
    note("monitored, all ranks", lambda: dist.monitored_barrier(wait_all_ranks=True))


def objects(note: Notes) -> None:
    """Send objects."""
    rank, size = note.rank, note.size
    mine = {"rank": rank, "text": "x" * (rank + 1), "tensor": numbers(rank, rank + 1)}

    def gather_all() -> Any:
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, mine)
        return gathered

    def gather() -> Any:
        gathered: list[Any] = [None] * size
        dist.gather_object(mine, gathered if rank == 0 else None, 0)
        return gathered

    def broadcast() -> Any:
        sent: list[Any] = [mine, rank] if rank == size - 1 else [None, None]
        dist.broadcast_object_list(sent, size - 1)
        return sent

    def scatter() -> Any:
        received: list[Any] = [None]
        dist.scatter_object_list(
            received, [{"for": n} for n in range(size)] if rank == 0 else None, 0
        )
        return received

    def messages() -> Any:
        received: list[Any] = [None]
        if rank == 0:
            dist.send_object_list([mine], 1)
        elif rank == 1:
            return [dist.recv_object_list(received, 0), received]
        return None

    note("all_gather_object", gather_all)
    note("gather_object", gather)
    note("broadcast_object_list", broadcast)
    note("scatter_object_list", scatter)
    note("send_object_list", messages)


def _described(group: Any) -> Any:
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return "not a member"
    return [
        group.rank(),
        group.size(),
        dist.get_process_group_ranks(group),
        dist.get_rank(group),
        dist.get_backend(group),
    ]


def groups(note: Notes) -> None:
    """Make groups, and send in them."""
    rank, size = note.rank, note.size

    def total(group: Any) -> Any:
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        tensor = numbers(rank, 3)
        dist.all_reduce(tensor, group=group)
        return tensor

    odd = note("subset", lambda: dist.new_group(list(range(1, size))))
    note("of the subset", lambda: _described(odd))
    note("in the subset", lambda: total(odd))
    pair = dist.new_group([0, size - 1], group_desc="a pair")
    note(
        "of the pair",
        lambda: [_described(pair), pair.group_desc if rank in (0, size - 1) else ""],
    )
    note("in the pair", lambda: total(pair))
    local: Any = None
    if rank < 2 < size:  # With two ranks torch itself names the group differently.
        local = dist.new_group([0, 1], use_local_synchronization=True)
        note("of the local group", lambda: _described(local))
        note("in the local group", lambda: total(local))
    note("of everyone", lambda: _described(dist.new_group()))
    subgroup, every = dist.new_subgroups(1)
    note("subgroups", lambda: [_described(subgroup), len(every)])
    note("in a subgroup of one", lambda: total(subgroup))
    if size == 4:
        mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        note("enumerated", lambda: [_described(mine), total(mine)])
    note("duplicate ranks", lambda: dist.new_group([0, 0]))
    note("unknown rank", lambda: dist.new_group([0, size]))
    note(
        "broadcast from outside",
        lambda: dist.broadcast(torch.zeros(1), 0, group=odd) if rank else None,
    )
    note("destroy", lambda: dist.destroy_process_group(pair) if rank in (0, size - 1) else None)
    note("split", lambda: _split(size))


def _split(size: int) -> Any:
    group = dist.split_group(None, [list(range(size))])
    return _described(group)


def functionals(note: Notes) -> None:
    """Send by functional collectives."""
    rank, size = note.rank, note.size
    world: Any = dist.group.WORLD
    wait: Any = functional.wait_tensor
    mine = numbers(rank, size * 2)
    note("all_reduce", lambda: wait(functional.all_reduce(mine, "sum", world)))
    note("all_reduce avg", lambda: wait(functional.all_reduce(mine, "avg", world)))
    note("without a wait", lambda: functional.all_reduce(mine, "max", world) + 1)
    note("all_gather", lambda: wait(functional.all_gather_tensor(mine, 0, world)))
    note(
        "all_gather of columns",
        lambda: wait(functional.all_gather_tensor(mine.view(2, -1), 1, world)),
    )
    note("reduce_scatter", lambda: wait(functional.reduce_scatter_tensor(mine, "sum", 0, world)))
    note("all_to_all", lambda: wait(functional.all_to_all_single(mine, None, None, world)))
    note("broadcast", lambda: wait(functional.broadcast(mine, 0, world)))
    note(
        "coalesced",
        lambda: [wait(t) for t in functional.all_reduce_coalesced([mine, mine + 1], "sum", world)],
    )
    note(
        "gather coalesced",
        lambda: [
            wait(t) for t in functional.all_gather_into_tensor_coalesced([mine, mine + 1], world)
        ],
    )
    note(
        "scatter coalesced",
        lambda: [
            wait(t)
            for t in functional.reduce_scatter_tensor_coalesced(
                [mine, mine + 1], "sum", [0, 0], world
            )
        ],
    )
    note("by ranks", lambda: wait(functional.all_reduce(mine, "sum", list(range(size)))))
    weight = mine.clone().requires_grad_()

    def differentiated() -> Any:
        output = functional.all_gather_tensor_autograd(weight, 0, world)
        (output * output).sum().backward()
        return weight.grad

    note("differentiated", differentiated)


def meshes(note: Notes) -> None:
    """Make device meshes."""
    rank, size = note.rank, note.size

    def mesh() -> Any:
        made = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
        tensor = numbers(rank, 3)
        dist.all_reduce(tensor, group=made.get_group("dp"))
        return [tensor, made.get_local_rank(), made.size(), _described(made.get_group())]

    def grid() -> Any:
        made = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
        results: list[Any] = []
        for name in ("a", "b"):
            tensor = numbers(rank, 3)
            dist.all_reduce(tensor, group=made[name].get_group())
            results += [tensor, made.get_local_rank(name), _described(made.get_group(name))]
        return results

    note("mesh", mesh)
    if size % 2 == 0:
        note("grid", grid)


def store(note: Notes) -> None:
    """Use the default store."""
    rank, size = note.rank, note.size
    kept: Any = dist.distributed_c10d._get_default_store()
    note("set", lambda: kept.set(f"mine {rank}", f"value {rank}"))
    note("get", lambda: [kept.get(f"mine {peer}") for peer in range(size)])
    note("wait", lambda: kept.wait([f"mine {peer}" for peer in range(size)]))
    note("check", lambda: [kept.check(["mine 0"]), kept.check(["mine 0", "nothing"])])
    kept.add("count", 1)
    dist.barrier()
    note("add", lambda: kept.add("count", 0))
    note("add to text", lambda: kept.add("mine 0", 1))
    note("get a count", lambda: kept.get("count"))
    note("compare_set", lambda: kept.compare_set("once", "", "first") if rank == 0 else None)
    dist.barrier()
    note("compare_set again", lambda: kept.compare_set("once", "other", "second"))
    note("compare_set a missing key", lambda: kept.compare_set(f"none {rank}", "expected", "new"))
    dist.barrier()
    note("delete", lambda: kept.delete_key("once") if rank == 0 else None)
    note("delete nothing", lambda: kept.delete_key("nothing"))
    note("bytes", lambda: [kept.set(f"bytes {rank}", b"\0\xff"), kept.get(f"bytes {rank}")])
    note(
        "multi",
        lambda: [
            kept.multi_set([f"m{rank}", f"n{rank}"], ["1", "2"]),
            kept.multi_get([f"m{rank}", f"n{rank}"]),
        ],
    )
    note(
        "append",
        lambda: [kept.append(f"a{rank}", "1"), kept.append(f"a{rank}", "2"), kept.get(f"a{rank}")],
    )
    note("extended", kept.has_extended_api)
    inner = _c10d.PrefixStore("inner", kept)
    note("prefix", lambda: [inner.set("key", "value"), inner.get("key"), kept.get("inner/key")])
    note("timeout", lambda: kept.timeout.total_seconds() > 0)


def asynchronous(note: Notes) -> None:
    """Wait in another order than that of the calls, and in other ways."""
    rank, size = note.rank, note.size
    tensors = [numbers(rank + n, 3) for n in range(4)]
    works: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    note("waits", lambda: [works[n].wait() for n in (2, 0, 3, 1)])
    note("results", lambda: tensors)
    note("again", lambda: [work.wait() for work in works])
    note("result()", lambda: [work.result() for work in works])
    note("exception()", lambda: [work.exception() for work in works])
    note("flags", lambda: [(work.is_completed(), work.is_success()) for work in works])
    note("synchronize", works[0].synchronize)
    note("source_rank", works[0].source_rank)
    for name, begin in {
        "all_reduce": lambda: dist.all_reduce(numbers(rank, 3), async_op=True),
        "broadcast": lambda: dist.broadcast(numbers(rank, 3), 0, async_op=True),
        "all_gather": lambda: dist.all_gather(
            [torch.zeros(2) for _ in range(size)], numbers(rank, 2), async_op=True
        ),
        "into": lambda: dist.all_gather_into_tensor(
            torch.zeros(2 * size), numbers(rank, 2), async_op=True
        ),
        "all_to_all": lambda: dist.all_to_all_single(
            torch.zeros(size), numbers(rank, size), async_op=True
        ),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            torch.zeros(2), numbers(rank, 2 * size), async_op=True
        ),
        "reduce_scatter list": lambda: dist.reduce_scatter(
            torch.zeros(2), [numbers(rank, 2)] * size, async_op=True
        ),
        "coalesced": lambda: dist.all_reduce_coalesced([numbers(rank, 2)], async_op=True),
        "scatter": lambda: dist.scatter(
            torch.zeros(2),
            [numbers(n, 2) for n in range(size)] if rank == 0 else None,
            0,
            async_op=True,
        ),
        "gather": lambda: dist.gather(
            numbers(rank, 2),
            [torch.zeros(2) for _ in range(size)] if rank == 0 else None,
            0,
            async_op=True,
        ),
        "barrier": lambda: dist.barrier(async_op=True),
    }.items():
        _looks(note, name, begin)


def _looks(note: Notes, name: str, begin: Any) -> None:
    works: list[Any] = [begin() for _ in range(3)]
    note(f"{name}: wait", works[0].wait)
    if hasattr(works[0], "result"):
        note(f"{name}: result()", works[0].result)
    note(f"{name}: future", lambda: works[1].get_future().wait())
    note(f"{name}: value", lambda: works[1].get_future().value())
    note(f"{name}: after the future", works[1].wait)
    note(f"{name}: then", lambda: works[2].get_future().then(lambda f: ["then", f.value()]).wait())
    if "reduce_scatter" not in name:
        note(f"{name}: done", lambda: [works[0].is_completed(), works[0].exception()])
    for work in works:
        work.wait()
    dist.barrier()


def polling(note: Notes) -> None:
    """Poll until a collective is complete."""

    def poll(work: Any) -> bool:
        looks = 0
        while not work.is_completed() and looks < 10**7:
            looks += 1
        return looks < 10**7

    tensor = numbers(note.rank, 3)
    note("is_completed", lambda: [poll(dist.all_reduce(tensor, async_op=True)), tensor])
    other = numbers(note.rank, 3)

    def futures() -> Any:
        work: Any = dist.all_reduce(other, async_op=True)
        future = work.get_future()
        while not future.done():
            pass
        return [future.value(), other]

    note("done", futures)


def futures(note: Notes) -> None:
    """Chain and collect futures."""
    rank = note.rank

    def begin(n: int = 0) -> Any:
        work: Any = dist.all_reduce(numbers(rank + n, 3), async_op=True)
        return work.get_future()

    note("then", lambda: begin().then(lambda f: f.value()[0] * 2).wait())
    note(
        "chain", lambda: begin().then(lambda f: f.wait()[0] + 1).then(lambda f: f.wait() * 3).wait()
    )
    note(
        "collect_all",
        lambda: [f.wait() for f in torch.futures.collect_all([begin(1), begin(2)]).wait()],
    )
    note("wait_all", lambda: torch.futures.wait_all([begin(1), begin(2)]))
    note("then of collect_all", lambda: _collected([begin(1), begin(2)]))
    note("raises in then", lambda: begin().then(lambda _f: 1 / 0).wait())
    seen: list[Any] = []

    def callback() -> Any:
        future = begin()
        future.add_done_callback(lambda f: seen.append(f.value()))
        future.wait()
        dist.barrier()
        return seen

    note("add_done_callback", callback)
    note("collective in then", lambda: _nested(begin()))
    own = torch.futures.Future[int]()
    own.set_result(3)
    note("a future of one's own", own.wait)


def _collected(pending: list[Any]) -> Any:
    return (
        torch.futures.collect_all(pending).then(lambda f: [one.value() for one in f.value()]).wait()
    )


def _nested(future: Any) -> Any:
    def again(before: Any) -> Any:
        tensor = before.value()[0]
        work: Any = dist.all_reduce(tensor, async_op=True)
        work.wait()
        return tensor

    return future.then(again).wait()


def refusals(note: Notes) -> None:
    """Pass arguments that torch or gloo refuses, on every rank alike."""
    rank, size = note.rank, note.size
    note("no tensor", lambda: dist.all_reduce(3))
    note("unknown root", lambda: dist.broadcast(torch.zeros(2), size))
    note("negative root", lambda: dist.broadcast(torch.zeros(2), -1))
    note(
        "list of dtypes",
        lambda: dist.all_gather([torch.zeros(2, dtype=torch.int64)] * size, torch.zeros(2)),
    )
    note("list of sizes", lambda: dist.all_gather([torch.zeros(3)] * size, torch.zeros(2)))
    note("float8", lambda: dist.all_reduce(torch.zeros(2).to(torch.float8_e4m3fn)))
    note("float8 broadcast", lambda: dist.broadcast(torch.zeros(2).to(torch.float8_e4m3fn), 0))
    note(
        "quantised",
        lambda: dist.all_reduce(torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)),
    )
    note("uint16", lambda: dist.all_reduce(torch.zeros(2, dtype=torch.uint16)))
    note(
        "scatter list of the wrong length",
        lambda: (
            dist.scatter(torch.zeros(2), [torch.zeros(2)] if rank == 0 else None, 0)
            if rank == 0
            else None
        ),
    )
    note(
        "gather list of the wrong length",
        lambda: dist.gather(torch.zeros(2), [torch.zeros(2)], 0) if rank == 0 else None,
    )
    note(
        "reduce_scatter of too few",
        lambda: dist.reduce_scatter(torch.zeros(2), [torch.zeros(2)] * (size - 1)),
    )
    note(
        "all_to_all of too few",
        lambda: dist.all_to_all([torch.zeros(2)] * (size - 1), [torch.zeros(2)] * (size - 1)),
    )
    note("no operation", lambda: dist.all_reduce(torch.zeros(2), "sum"))
    note("coalesced, empty", lambda: dist.all_reduce_coalesced([]))
    note("conjugate", lambda: _conjugate(rank))
    note("still works", dist.barrier)


def _conjugate(rank: int) -> Tensor:
    tensor = torch.tensor([1 + 1j * rank, 2]).conj()
    dist.all_reduce(tensor)
    return tensor


def _model() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_((parameter * 8).round())
    return model


def _trained(
    rank: int, hook: Any = None, state: Any = None, unused: bool = False, **options: Any
) -> Any:
    model = _model()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused, **options)
    if hook is not None:
        wrapped.register_comm_hook(state, hook)
    results: list[Any] = []
    for step in range(3):
        model.zero_grad()
        output = wrapped(numbers(rank + step, 8).view(2, 4))
        output.sum().backward()
        results.append(
            [
                parameter.grad.clone()
                for parameter in model.parameters()
                if parameter.grad is not None
            ]
        )
    return results


def hooks(note: Notes) -> None:
    """Train with torch's DDP and its hooks."""
    rank = note.rank
    note("plain", lambda: _trained(rank))
    note("small buckets", lambda: _trained(rank, bucket_cap_mb=1e-5))
    note("static graph", lambda: _trained(rank, static_graph=True))
    note("unused", lambda: _trained(rank, unused=True))
    note("views", lambda: _trained(rank, gradient_as_bucket_view=True, bucket_cap_mb=1e-5))
    for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"):
        hook = getattr(default_hooks, name)
        note(name, lambda hook=hook: _trained(rank, hook, bucket_cap_mb=1e-5))  # type: ignore[misc]
    wrapper = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    note("wrapper", lambda: _trained(rank, wrapper))

    def chained(_state: Any, bucket: Any) -> Any:
        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

        def again(future: Any) -> Any:
            return future.value()[0].div(2)

        return work.get_future().then(again).then(lambda future: future.value() * 4)

    note("chained", lambda: _trained(rank, chained, bucket_cap_mb=1e-5))
    state = powerSGD_hook.PowerSGDState(
        None, 1, start_powerSGD_iter=1 + 1, min_compression_rate=0.1
    )
    note("PowerSGD finishes", lambda: len(_trained(rank, powerSGD_hook.powerSGD_hook, state)))


def training(note: Notes) -> None:  # noqa: C901 - one function for each way to train
    """Train with torch's DDP: unused parameters, no_sync, Join."""
    rank = note.rank

    def no_sync() -> Any:
        model = _model()
        wrapped = nn.parallel.DistributedDataParallel(model)
        with wrapped.no_sync():
            wrapped(numbers(rank, 8).view(2, 4)).sum().backward()
        wrapped(numbers(rank + 1, 8).view(2, 4)).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    def join() -> Any:
        model = _model()
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-5)
        with wrapped.join():
            for step in range(rank + 1):
                wrapped.zero_grad()
                wrapped(numbers(rank + step, 8).view(2, 4)).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    def join_throws() -> Any:
        wrapped = nn.parallel.DistributedDataParallel(_model())
        with wrapped.join(throw_on_early_termination=True):
            for step in range(rank + 1):
                wrapped(numbers(rank + step, 8).view(2, 4)).sum().backward()

    def partly() -> Any:
        model: Any = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        for parameter in model.parameters():
            nn.init.ones_(parameter)

        class Chooses(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = model

            def forward(self, x: Tensor, part: int) -> Any:
                return self.parts[part](x)

        wrapped = nn.parallel.DistributedDataParallel(Chooses(), find_unused_parameters=True)
        wrapped(numbers(rank, 8).view(2, 4), rank % 2).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    def buffers() -> Any:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        wrapped = nn.parallel.DistributedDataParallel(model)
        for step in range(2):
            wrapped(numbers(rank + step, 8).view(2, 4)).sum().backward()
        return [model[1].running_mean.round()]

    note("no_sync", no_sync)
    note("join", join)
    note("join throws", join_throws)
    note("partly", partly)
    note("buffers", buffers)


def asking(note: Notes) -> None:
    """Ask torch.distributed for facts."""
    note("rank", lambda: [dist.get_rank(), dist.get_world_size(), dist.is_initialized()])
    note("backend", lambda: [dist.get_backend(), str(dist.get_backend_config())])
    note("gloo", lambda: [dist.is_gloo_available(), dist.is_torchelastic_launched()])
    world: Any = dist.group.WORLD
    note(
        "names",
        lambda: [world.group_name, world.group_desc, world.name(), world.rank(), world.size()],
    )
    note("device types", lambda: str(world._device_types))
    note("backend of a device", lambda: type(world._get_backend(torch.device("cpu"))).__name__)
    note("node local rank", dist.get_node_local_rank)
    note("initialise again", lambda: dist.init_process_group("gloo"))
    note("count", lambda: dist.distributed_c10d._get_group_size(None))
    note("debug level", lambda: str(_c10d.get_debug_level()))
    note("sequence number", world._get_sequence_number_for_group)
    note("object ranks", lambda: dist.get_global_rank(world, 0))


SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        all_reduce,
        premultiplied,
        strides,
        shapes,
        sparse,
        coalesced,
        gathers,
        scatters,
        exchanges,
        messages,
        larger_receive,
        barriers,
        objects,
        groups,
        functionals,
        meshes,
        store,
        asynchronous,
        polling,
        futures,
        refusals,
        hooks,
        training,
        asking,
    )
}
