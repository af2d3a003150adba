"""The part of the pytest plugin that every pytest run of an environment loads, as an entry point.

It adds no option, so it clashes with no other suite, and it imports nothing but pytest. A command
that asks for this suite makes it load `ddp_invariants.plugin`, which adds the options:

    pytest --ddp my_package.ddp:MyDDP --pyargs ddp_invariants.properties

A command asks for this suite by the package of the properties, or by `--ddp` with the name of an
implementation.
"""

import re
from collections.abc import Sequence
from importlib.metadata import entry_points
from itertools import pairwise

import pytest

PLUGIN = "ddp_invariants.plugin"
_PROPERTIES = "ddp_invariants.properties"
_SHORT = ("reference", "torch", "none")
_NAMED = re.compile(r"[^:]+:[^\W\d][\w.]*|course:[^:]+#\w+")
"""The form of an implementation's name; a test's name has two colons."""
_ASKED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: Sequence[str]) -> None:
    """Load the plugin if the command asks for it, before the options are parsed."""
    early_config.stash[_ASKED] = asks(args)
    if early_config.stash[_ASKED]:
        early_config.pluginmanager.import_plugin(PLUGIN)


def pytest_configure(config: pytest.Config) -> None:
    """Have the workers of xdist load the plugin, too: they get options, but not the command."""
    if config.stash.get(_ASKED, False) and PLUGIN not in config.option.plugins:
        config.option.plugins = [*config.option.plugins, PLUGIN]


def asks(arguments: Sequence[str]) -> bool:
    """Return whether a command asks for this suite."""
    named = [value for option, value in pairwise(arguments) if option == "--ddp"]
    named += [option.removeprefix("--ddp=") for option in arguments if option.startswith("--ddp=")]
    return any(
        argument == _PROPERTIES or argument.startswith(f"{_PROPERTIES}.") for argument in arguments
    ) or any(_is_implementation(name) for name in named)


def _is_implementation(name: str) -> bool:
    """Return whether a text has the form of an implementation's name, or is an entry point."""
    return (
        name in _SHORT
        or _NAMED.fullmatch(name) is not None
        or bool(entry_points(group="ddp_invariants.ddp", name=name))
    )
