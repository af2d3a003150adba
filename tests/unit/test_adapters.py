"""Tests of the shipped adapters' names; `benchmarks/third_parties.py` judges them with their libraries."""

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddp_invariants.implementation import adapters
from ddp_invariants.implementation.adapters import megatron
from ddp_invariants.implementation.names import ADAPTERS, misnamed, shipped_module, target_of
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.ranks.driving.adapters import check_adapter
from ddp_invariants.ranks.driving.ddp import Driver


@pytest.mark.parametrize("name", ADAPTERS["ddp"])
def test_a_shipped_adapter_loads_without_its_library_and_has_only_known_methods(name: str) -> None:
    """A short name stands for an adapter that is checked like a user's own."""
    assert misnamed(name, "ddp") == ""
    module, _, attribute = target_of(name, "ddp").partition(":")
    check_adapter(getattr(importlib.import_module(module), attribute), f"--ddp {name}")


@pytest.mark.parametrize("name", ADAPTERS["sampler"])
def test_a_shipped_sampler_adapter_loads_without_its_library(name: str) -> None:
    """A short name stands for a function or a class, which alone needs the library."""
    assert misnamed(name, "sampler") == ""
    module, _, attribute = target_of(name, "sampler").partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_no_adapter_is_without_a_short_name() -> None:
    """Each module beside the adapters is one that a short name leads to."""
    folder = Path(adapters.__path__[0])
    named = {target.partition(":")[0] for side in ADAPTERS.values() for target in side.values()}
    for path in folder.rglob("[!_]*.py"):
        module = ".".join((adapters.__name__, *path.relative_to(folder).with_suffix("").parts))
        assert module in named


def test_the_module_of_a_shipped_adapter_is_what_hosts_may_import() -> None:
    """Another module may do more than to import a library, so only its ranks import it."""
    module = "ddp_invariants.implementation.adapters.{}"
    assert shipped_module("megatron", "torch") == module.format("megatron")
    assert shipped_module("torch", "lhotse_simple") == module.format("samplers.lhotse")
    assert shipped_module("torch", "reference") == shipped_module("mine.py:DDP", "torch") == ""


@pytest.mark.parametrize("name", ["deepspeed1", "deepspeed2", "megatron"])
def test_an_adapter_takes_arguments_also_by_an_init_that_it_inherits(name: str) -> None:
    """`--ddp-arg` passes options of the library to the adapter's `__init__`."""
    adapter = Driver(Ddp(name, (("overlap", "True"),))).adapter()
    assert adapter.options == {"overlap": True}


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> mock.MagicMock:
    """Stand in for DeepSpeed, whose `initialize` returns an engine and an optimizer."""
    library = mock.MagicMock()
    library.initialize.return_value = (mock.MagicMock(), mock.MagicMock())
    monkeypatch.setitem(sys.modules, "deepspeed", library)
    monkeypatch.setitem(sys.modules, "deepspeed.utils.groups", library.utils.groups)
    return library


def configured(library: mock.MagicMock, stage: str, cap: int | None = None, **options: Any) -> Any:
    """Return the options of ZeRO that an adapter passes to DeepSpeed."""
    engine = importlib.import_module("ddp_invariants.implementation.adapters.deepspeed")
    getattr(engine, stage)(**options).wrap(mock.MagicMock(), mock.MagicMock(bucket_cap=cap))
    return library.initialize.call_args.kwargs["config"]["zero_optimization"]


def test_deepspeed_gets_a_small_bucket_if_nobody_asks_for_one(deepspeed: mock.MagicMock) -> None:
    """DeepSpeed allocates its default bucket of 2 GB in each rank, which a small machine lacks."""
    engine = importlib.import_module("ddp_invariants.implementation.adapters.deepspeed")
    asked = {"none": ({}, None), "by option": ({"reduce_bucket_size": 7}, None), "by case": ({}, 8)}
    sizes = {
        name: configured(deepspeed, "Stage1", cap, **options)["reduce_bucket_size"]
        for name, (options, cap) in asked.items()
    }
    assert sizes == {"none": engine.BUCKET, "by option": 7, "by case": 2}


def test_deepspeed_keeps_no_state_between_cases(deepspeed: mock.MagicMock) -> None:
    """The engine gets the group of the case, and compiles no operation to see if it could."""
    configured(deepspeed, "Stage1")
    assert deepspeed.utils.groups._WORLD_GROUP is dist.group.WORLD
    assert deepspeed.ops.__compatible_ops__ == {}


@pytest.mark.parametrize("stage", ["Stage2", "Stage3"])
def test_deepspeed_does_not_ask_for_no_sync_where_it_is_refused(stage: str) -> None:
    """Stages 2 and 3 reduce in each backward, and their `no_sync` raises."""
    engine = importlib.import_module("ddp_invariants.implementation.adapters.deepspeed")
    wrapped = mock.MagicMock()
    with getattr(engine, stage)().accumulate(wrapped):
        wrapped.no_sync.assert_not_called()


@pytest.mark.parametrize(("dtype", "elements"), [(torch.float32, 4), (torch.float64, 2)])
def test_megatron_gets_the_capacity_of_a_bucket_in_elements_of_the_model_s_dtype(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, elements: int
) -> None:
    """The suite gives a capacity in bytes, and Megatron counts elements."""
    library = mock.MagicMock()
    for name in ("distributed", "transformer.transformer_config", "process_groups_config"):
        monkeypatch.setitem(sys.modules, f"megatron.core.{name}", library)
    context = mock.Mock(bucket_cap=16, device=torch.device("cpu"))
    megatron.Megatron(overlap=True).wrap(nn.Linear(1, 1, dtype=dtype), context)
    library.DistributedDataParallelConfig.assert_called_once_with(
        overlap=True, bucket_size=elements
    )


def test_megatron_reduces_by_scattering_for_its_distributed_optimizer() -> None:
    """The optimizer requires this option of the wrapper; a user's options are added."""
    adapter = Driver(Ddp("megatron_distributed_optimizer", (("overlap", "True"),))).adapter()
    assert adapter.options == {"use_distributed_optimizer": True, "overlap": True}


def test_megatron_finds_its_flags_and_its_parameters_on_a_cpu_that_passes_for_cuda() -> None:
    """Megatron's optimizer names the device `cuda`, and compares the type of each parameter."""
    parameter = nn.Parameter(torch.ones(2))
    with megatron.AsIfOnCuda(torch.device("cpu")):
        flag, seen = torch.tensor([1.0], device="cuda"), parameter.type()
        wide = parameter.type(torch.float64)
    assert (flag.device.type, seen) == ("cpu", "torch.cuda.FloatTensor")
    assert (wide.dtype, parameter.type()) == (torch.float64, "torch.FloatTensor")


def test_megatron_refuses_a_dtype_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its distributed optimizer refuses it on some ranks, and the others would hang."""
    for name in ("distributed", "transformer.transformer_config", "process_groups_config"):
        monkeypatch.setitem(sys.modules, f"megatron.core.{name}", mock.MagicMock())
    for name in ("distrib_optimizer", "optimizer_config"):
        monkeypatch.setitem(sys.modules, f"megatron.core.optimizer.{name}", mock.MagicMock())
    context = mock.Mock(bucket_cap=None, device=torch.device("cpu"))
    with pytest.raises(NotImplementedError, match=r"takes no torch\.float64"):
        megatron.DistributedOptimizer().wrap(nn.Linear(1, 1, dtype=torch.float64), context)


def test_megatron_shows_gradients_that_are_gathered_from_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank's bucket holds the reduced gradients in its own part, and local ones elsewhere."""
    module = nn.Linear(1, 2)
    data = torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 4.0, 5.0])
    places = {module.bias: (8, 10, 1), module.weight: (12, 14, 1)}
    bucket = mock.Mock(grad_data=data, offset=8, params_list=list(places))
    wrapped = mock.Mock(
        module=module, buffers=[mock.Mock(buckets=[bucket], param_index_map=places)]
    )

    def gather(parts: list[torch.Tensor], own: torch.Tensor) -> None:
        parts[0].copy_(torch.tensor([1.0, 2.0, 0.0, 0.0]))
        parts[1].copy_(own)

    monkeypatch.setattr(dist, "all_gather", gather)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    gradients = megatron.DistributedOptimizer().gradients(wrapped)
    assert {name: each.tolist() for name, each in gradients.items()} == {
        "weight": [[3.0], [0.0]],
        "bias": [1.0, 2.0],
    }
