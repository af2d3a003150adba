"""Tests of the part of the plugin that every pytest run loads: which commands ask for this suite."""

import pytest

from ddp_invariants.session.autoload import asks


@pytest.mark.parametrize(
    "command",
    [
        "--ddp my_package.ddp:MyDDP",
        "--ddp=path/to/ddp.py:MyDDP tests",
        "-q --ddp torch",
        "--ddp none --opt my_package:Zero",
        "--ddp course:tests/adapters.py#bucketed",
        "--sampler data.py:Own --pyargs ddp_invariants.properties",
        "--pyargs ddp_invariants.properties.test_shard",
    ],
)
def test_a_command_that_names_an_implementation_asks_for_the_suite(command: str) -> None:
    """The plugin loads if an implementation is named, or if the properties are."""
    assert asks(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "--ddp",
        "--ddp --seed 3",
        "--ddp tests/test_own.py",
        "--ddp tests/test_own.py::test_own",
        "--ddp=2 --sampler random",
        "--ddp-backend gloo:cpu",
        "--sampler data.py:Own tests/properties",
        "-k ddp_invariants.property",
    ],
)
def test_a_command_with_options_of_another_suite_does_not(command: str) -> None:
    """Another suite may have options of the same names: flags, numbers or paths."""
    assert not asks(command.split())
