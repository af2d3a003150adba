"""The documents agree with the code and with the outputs of the commands."""

import itertools
import re
import secrets
import shlex
import tomllib
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
import rule_pages
from gallery import table
from readme import (
    ADAPTER,
    CAPABILITY_PAGE,
    DOCUMENTS,
    FILE,
    OFFERED,
    PART,
    README,
    ROOT,
    SPEED,
    STATUSES,
    TABLE,
    USAGE,
    capabilities_table,
    excerpt,
    outputs,
    part,
    run,
    shape,
    speed_table,
    statuses_table,
)

from conftest import Session
from ddp_invariants import plugin
from ddp_invariants.cli import main
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.implementation.spec import OPTIONS
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.ranks.driving import arguments
from ddp_invariants.report import pages
from ddp_invariants.session import options as session_options

TEXT = README.read_text(encoding="utf-8")
LONGEST_README = 1300
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SESSIONS = [command for command in outputs() if command.startswith("pytest")]
WHOLE = next(command for command in SESSIONS if " -k " not in command)
"""The command of a session of all properties."""
LINK = re.compile(r"\]\((?!https?://)([^)\s#]*)(#[^)\s]*)?\)")
"""A link to a file of the repository, or to a heading of one."""


def _anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {
        "#" + re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def test_the_violation_shown_is_that_of_its_command(session: Session) -> None:
    """The command, run again, gives the violation shown, except for numbers and widths."""
    (command,) = (command for command in SESSIONS if command != WHOLE)
    assert shape(run(command, start=session)) == shape(outputs()[command])


def test_every_property_holds_for_the_reference_as_shown(session: Session) -> None:
    """A session of all properties ends as the one shown does, with a new seed each time.

    With the cases of another seed the numbers differ, the places where lines are wrapped, and
    whether some errors are zero.
    """
    command = WHOLE.replace("--seed 1", f"--seed {secrets.randbelow(1 << 32)}")
    output = run(command, start=session)
    shown = outputs()[WHOLE]
    assert "inconclusive" not in _verdicts(shown).values()
    assert [*_verdicts(output).values()].count("holds") > len(ALL_RULES) * 0.8
    assert _verdicts(output) == _verdicts(shown), output
    assert _words(output) == _words(shown), output


def _verdicts(output: str) -> dict[str, str]:
    """Return the verdicts in the table of an output, by rule."""
    rows = re.findall(r"^([A-Z]+-\d+) +([a-z ]+?)  ", output, re.MULTILINE)
    assert [rule for rule, _ in rows] == [*ALL_RULES]
    return dict(rows)


def _words(output: str) -> list[str]:
    """Return the words of an output's shape; a largest error may be zero or not."""
    return re.sub(r"(?<=# )(none|# of bound)\b", "error", shape(output)).split()


def test_what_is_quoted_from_files_is_what_they_say() -> None:
    """The quoted parts of files, and the table of the gallery, are up to date."""
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    quoted = [match for text in texts for match in FILE.finditer(text)]
    assert quoted
    assert all(
        match["text"] == excerpt(match["path"], match["start"], match["end"]) for match in quoted
    )
    assert [match["table"] for text in texts for match in TABLE.finditer(text)] == [table()]


def test_every_excerpt_is_in_the_document_that_shows_the_whole() -> None:
    """The README's violation and its speed table repeat what other documents show in full."""
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    parts = [match for text in texts for match in PART.finditer(text)]
    assert any(match[0] in TEXT for match in parts)
    for match in parts:
        assert match["text"] == part(outputs()[match["command"]], match["start"], match["end"])
    assert [match["table"] for match in SPEED.finditer(TEXT)] == [speed_table()]


def test_the_readme_is_short() -> None:
    """A newcomer reads at most 1,300 words before using the suite."""
    assert len(TEXT.split()) <= LONGEST_README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_heading_that_exist(document: Path) -> None:
    """Links between documents resolve, with their anchors."""
    for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), f"{document.name}: {target}"
        assert not anchor or anchor in _anchors(path), f"{document.name}: {target}{anchor}"


def test_the_two_commands_stand_at_the_top_and_are_what_ci_runs() -> None:
    """The installation line is that of .ci/run, and the test command is that of .ci/check."""
    commands = re.findall(r"```sh\n(.*?)\n```", TEXT, re.DOTALL)[:2]
    install, properties = commands[0].split(" && ")
    assert commands[1].split(" && ")[0] == install
    assert install.removeprefix("pip install ") in (ROOT / ".ci" / "run").read_text()
    check = (ROOT / ".ci" / "check").read_text()
    assert re.search(rf"^{commands[1].split(' && ')[1]} ", check, re.MULTILINE)
    assert properties == "pytest -n auto properties/"


def test_the_pages_of_rules_are_what_the_code_says() -> None:
    """The pages of the rules are what the code makes: requirements, sources, conditions, faults."""
    texts = rule_pages.pages()
    assert {*rule_pages.PAGES.glob("*.md")} == texts.keys() - {rule_pages.INDEX}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_every_rule_has_a_page_in_the_checkout() -> None:
    """The address that reports name is that of a file, if the package names no site."""
    for rule in ALL_RULES:
        assert (ROOT / pages.page_of(rule)).is_file()
    assert pages.page_of("GRAD-100") == ""


def test_the_page_of_a_rule_is_on_the_site_if_the_package_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address that reports name lies below that of the project's documentation."""
    addresses = ["Source, https://example.org/source", "Documentation, https://example.org/site/"]
    named = Mock(get_all=Mock(return_value=addresses))
    monkeypatch.setattr(pages, "metadata", Mock(return_value=named))
    pages.site.cache_clear()
    try:
        assert pages.page_of("GRAD-2") == "https://example.org/site/docs/rules/GRAD-2.html"
    finally:
        pages.site.cache_clear()


def test_every_command_shown_is_one() -> None:
    """The command line accepts every command, option and argument that the documents show."""
    shown = {
        line
        for document in DOCUMENTS
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("ddp-invariants ")
    }
    assert len(shown) > 12
    for line in sorted(shown):
        _, name, *words = shlex.split(line.partition(" > ")[0])
        command = main.get_command(click.Context(main), name)
        assert command is not None, line
        command.make_context(name, words)


def test_every_option_is_in_the_table_with_its_values() -> None:
    """The table on usage lists exactly the options that the plugin adds to pytest."""
    parser = Mock()
    plugin.pytest_addoption(parser)
    added = parser.getgroup.return_value.addoption.call_args_list
    options = {call.args[0] for call in added}
    assert options > {*OPTIONS}
    text = USAGE.read_text(encoding="utf-8")
    table = {
        option
        for row in re.findall(r"^\| (`--.*?`) \|", text, re.MULTILINE)
        for option in re.findall(r"--[a-z-]+", row)
    }
    assert table == options
    numbers = ", ".join(str(n) for n in list(session_options.PROFILES.values())[:2])
    assert f"{numbers} or {session_options.PROFILES['thorough']} cases per property" in text


def test_the_table_of_exit_statuses_is_that_of_the_helps() -> None:
    """The page on usage has one table of exit statuses, made from the help texts of the commands."""
    shown = STATUSES.search(USAGE.read_text(encoding="utf-8"))
    assert shown is not None
    assert shown["table"] == statuses_table()


def test_the_tables_of_capabilities_are_those_of_the_code() -> None:
    """The page lists each capability once, with its meaning and its level."""
    shown = {
        match["side"]: match["table"]
        for match in OFFERED.finditer(CAPABILITY_PAGE.read_text(encoding="utf-8"))
    }
    assert shown == {side: capabilities_table(side) for side in ("ddp", "sampler")}
    named = re.findall(r"^\| `(\w+)`", "".join(shown.values()), re.MULTILINE)
    assert sorted(named) == sorted(CAPABILITIES)


def test_what_is_said_of_composed_implementations_is_what_was_measured() -> None:
    """The README's figures are those of docs/composed.md and docs/right.md."""
    figures = re.search(
        r"caught \[all of ([\d,]+) wrong ones\]\(docs/composed\.md\)\. It "
        r"accuses \[none of ([\d,]+) right ones\]\(docs/right\.md\) in over ([\d,]+) cases, "
        r"after (\w+) false accusations were fixed\.",
        " ".join(TEXT.split()),
    )
    assert figures is not None
    *numbers, fixed = figures.groups()
    wrong, right, cases = (int(figure.replace(",", "")) for figure in numbers)
    composed, accused = (
        (ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("composed.md", "right.md")
    )
    assert f"| caught | {wrong} of {wrong} searches |" in composed
    assert "| accused | 0 |" in accused
    assert f"--right {right} --seed 1" in accused
    judged = re.search(r"^\| cases \| ([\d,]+) \|$", accused, re.MULTILINE)
    assert judged is not None
    assert int(judged[1].replace(",", "")) > cases
    before = re.search(
        r"^\| accused before the suite was mended \| (\d+) \|$", accused, re.MULTILINE
    )
    unlisted = re.search(r"They accused (\w+) more implementations", accused)
    assert before is not None
    assert unlisted is not None
    assert WORDS.index(fixed) == int(before[1]) + WORDS.index(unlisted[1])


def test_the_names_an_implementation_may_use_are_those_the_loader_knows() -> None:
    """docs/adapter.md names every bucket cap and process group argument that the loader knows."""
    text = ADAPTER.read_text(encoding="utf-8")
    for name in (*arguments.BUCKET_CAPS, *arguments.GROUPS):
        assert f"`{name}`" in text


def test_every_dependency_has_its_reason_and_the_tested_set_is_pinned() -> None:
    """Every dependency has a comment with its reason, and a line in constraints.txt."""
    source = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(source)["project"]
    pinned = (ROOT / "constraints.txt").read_text()
    extras = project["optional-dependencies"].values()
    for requirement in itertools.chain(project["dependencies"], *extras):
        assert re.search(rf'"{re.escape(requirement)}",\s+# \w+', source), requirement
        name = re.split("[<>=]", requirement)[0]
        own = name.removeprefix("ddp-invariants[").removesuffix("]")
        assert own in project["optional-dependencies"] or re.search(
            rf"^{name}==", pinned, re.MULTILINE
        ), requirement
