"""A plugin of pytest that ends a test which takes too long, with the stacks of all its threads.

pytest's own `faulthandler_timeout` would hold for the properties as well, and a property takes as
long as its cases. Under pytest-xdist the test's worker ends: the test has failed, and the other
tests go on.
"""

import faulthandler
import os
from collections.abc import Generator

import pytest

SECONDS = float(os.environ.get("TEST_SECONDS", "1200"))
"""The limit for a test: several times what the slowest test takes on a loaded machine."""
_errors = -1


def pytest_configure(config: pytest.Config) -> None:
    """Keep the errors' descriptor of the start: later, pytest captures what a test writes."""
    global _errors  # noqa: PLW0603 - pytest keeps a module as the plugin
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        _errors = os.dup(2)
        return
    with capture.global_and_fixture_disabled():
        _errors = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """End the process if the test, with its fixtures, takes longer than the limit."""
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=_errors)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
