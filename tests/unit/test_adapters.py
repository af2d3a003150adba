"""Tests of the shipped adapters' names; `benchmarks/third_parties.py` judges them with their libraries."""

import importlib
from pathlib import Path

import pytest

from ddp_invariants.implementation import adapters
from ddp_invariants.implementation.names import ADAPTERS, misnamed, target_of
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


@pytest.mark.parametrize("name", ["deepspeed1", "deepspeed2", "megatron"])
def test_an_adapter_takes_arguments_also_by_an_init_that_it_inherits(name: str) -> None:
    """`--ddp-arg` passes options of the library to the adapter's `__init__`."""
    adapter = Driver(Ddp(name, (("overlap", "True"),))).adapter()
    assert adapter.options == {"overlap": True}
