"""Tests of the links to the pages of rules: in known terminals only, and never dead."""

import io
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from ddp_invariants.report import pages
from ddp_invariants.session.text import WithLinks

TEXT = "GRAD-2 violated; see docs/rules/GRAD-2.md, LIVE-10 of none, INIT-1."
LINK = re.compile(r"\x1b]8;;([^\x1b]*)\x1b\\([A-Z]+-\d+)\x1b]8;;\x1b\\")


def test_each_rule_of_a_text_is_a_link_to_a_file_that_exists() -> None:
    """An id of a rule is a link; a file's name and an unknown rule are not; nothing else changes."""
    linked = pages.with_links(TEXT)
    found = LINK.findall(linked)
    assert [rule for _, rule in found] == ["GRAD-2", "INIT-1"]
    assert all(Path(address.removeprefix("file://")).is_file() for address, _ in found)
    assert LINK.sub(r"\2", linked) == TEXT


def test_nothing_is_linked_without_documents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An installed package without an address has no page to link to, and names none."""
    monkeypatch.setattr(pages, "_CHECKOUT", tmp_path)
    assert pages.page_of("GRAD-2") == ""
    assert pages.with_links(TEXT) == TEXT


@pytest.mark.parametrize(
    ("variables", "opens"),
    [
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7203"}, True),
        ({"TERM": "xterm-256color", "VTE_VERSION": "4602"}, False),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "vscode"}, True),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-kitty", "CI": "true"}, False),
        ({"TERM": "dumb", "TERM_PROGRAM": "vscode"}, False),
        ({"VTE_VERSION": "7203"}, False),
        ({"FORCE_HYPERLINK": "1"}, True),
        ({"TERM": "xterm-kitty", "FORCE_HYPERLINK": "0"}, False),
    ],
)
def test_only_terminals_that_are_known_to_have_links_get_them(
    variables: dict[str, str], opens: bool
) -> None:
    """A terminal is known by its variables; the user's own word decides if there is one."""
    assert pages.opens_links(variables, terminal=True) is opens


def test_a_file_gets_no_links() -> None:
    """Output that is no terminal stays plain text."""
    assert not pages.opens_links({"TERM": "xterm-kitty"}, terminal=False)


@pytest.mark.parametrize("markup", [True, False])
def test_a_failure_has_links_where_pytest_writes_markup(
    markup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure's text is plain everywhere else, such as in a JUnit file."""
    monkeypatch.setenv("FORCE_HYPERLINK", "1")
    out = io.StringIO()
    failure = WithLinks("GRAD-2 violated")
    failure.toterminal(Mock(hasmarkup=markup, line=out.write))
    assert bool(LINK.search(out.getvalue())) is markup
    assert f"{failure}" == "GRAD-2 violated"
