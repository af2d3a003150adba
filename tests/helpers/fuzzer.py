"""A fuzzer as simple as can be: pytest collects the properties, and this program runs one of them.

HypoFuzz works like this. It needs what is checked here of each property, and more packages than
the tests are to install. `python -m tests.helpers.fuzzer OPTIONS` takes the options of pytest.
"""

import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

RUN = "test_shard1_"
"""The beginning of the name of the property that is run: the quickest one."""
CASES = 5
"""The cases that are drawn for it."""


class Collector:
    """A plugin that keeps the collected tests."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the tests."""
        self.items = session.items


def is_fuzzed(test: Any) -> bool:
    """Return whether HypoFuzz takes a test and not leaves it out for its settings."""
    own = getattr(test, "_hypothesis_internal_use_settings", settings())
    return (
        is_hypothesis_test(test)
        and own.database == settings().database
        and not own.derandomize
        and Phase.generate in own.phases
        and HealthCheck.nested_given not in own.suppress_health_check
    )


def main() -> None:
    """Collect the properties, and run one of them."""
    collector = Collector()
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    # A test takes the settings that are the default when its module is imported.
    for name in [name for name in sys.modules if name.startswith("properties.")]:
        del sys.modules[name]
    # Where CI is set, Hypothesis fixes its seed by itself, and HypoFuzz would leave the tests out.
    profile = "--hypothesis-profile=default"
    options = ["--collect-only", "-m=hypothesis", profile, f"--pythonwarnings={ignored}"]
    options += sys.argv[1:]
    status = pytest.main(["-p", "no:cacheprovider", *options], plugins=[collector])
    assert status == 0, status
    for item in collector.items:
        assert is_fuzzed(item.obj), item.nodeid
    print(f"collected {len(collector.items)}")  # noqa: T201 - a program's output
    (chosen,) = (item for item in collector.items if item.name.startswith(RUN))
    chosen.session._setupstate.setup(chosen)
    ranks = chosen.funcargs["ranks"]
    few = settings(max_examples=CASES, database=None, deadline=None, phases=[Phase.generate])
    few(chosen.obj)(ranks=ranks)
    print(f"judged {ranks.trial.ledger.ran.total()} cases of {chosen.name}")  # noqa: T201 - the same


if __name__ == "__main__":
    main()
