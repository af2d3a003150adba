"""The documentation as a site: Sphinx builds it without a warning, and no link in it is broken."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from readme import DOCUMENTS

from ddp_invariants.invariants import ALL_RULES

ROOT = Path(__file__).parents[2]
SEARCHED = ("search.html", "genindex.html", "py-modindex.html")
"""Pages that Sphinx makes from no file."""


class Page(HTMLParser):
    """The links and anchors of a page, and the files that it loads.

    Attributes:
        links: The targets of its links.
        anchors: The names in it that a link may end with.
        loaded: The files that a browser loads with it.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag's link, anchor or file."""
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag in ("script", "img") and "src" in given:
            self.loaded.add(given["src"])
        if tag == "link" and given.get("rel") == "stylesheet" and "href" in given:
            self.loaded.add(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, with every warning an error and every reference checked.

    The workers of a run share one site.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "html" / "index.html").exists():
            build(folder)
    return folder / "html"


def build(folder: Path) -> None:
    """Build the site in a folder."""
    command = f"-m sphinx -q -W --keep-going -n -d {folder / 'trees'} -c docs . {folder / 'html'}"
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@cache
def read(path: Path) -> Page:
    """Return a page of the site."""
    return Page(path.read_text(encoding="utf-8"))


def pages(site: Path) -> Iterator[Path]:
    """Yield the pages of the site."""
    yield from site.rglob("*.html")


def test_every_document_is_a_page_of_the_site(site: Path) -> None:
    """Each Markdown file of the documentation becomes a page, also those of the rules."""
    documents = {
        path.relative_to(ROOT).with_suffix(".html")
        for path in (
            *(ROOT / "docs").rglob("*.md"),
            *DOCUMENTS,
        )
    }
    assert len(documents) > len(ALL_RULES) + 20
    made = {path.relative_to(site) for path in pages(site)}
    assert made == documents | {Path("index.html"), *map(Path, SEARCHED)}


def test_no_link_within_the_site_is_broken(site: Path) -> None:
    """Every link to a page, to a heading or to a file of the site leads there."""
    checked, broken = 0, []
    for path in pages(site):
        for link in read(path).links:
            if ":" in link.partition("/")[0]:
                continue  # Another site.
            file, _, anchor = link.partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            checked += 1
            if not target.is_file() or (
                target.suffix == ".html" and unquote(anchor) not in read(target).anchors
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert checked > 5000
    assert broken == []


def test_a_page_loads_nothing_from_the_network(site: Path) -> None:
    """Scripts, pictures and styles are files of the site."""
    for path in pages(site):
        for loaded in read(path).loaded:
            assert (path.parent / loaded.partition("?")[0]).is_file(), f"{path}: {loaded}"


def test_the_reference_has_the_public_names(site: Path) -> None:
    """The page of the Python interface has an anchor for each public function and class."""
    anchors = read(site / "docs" / "python.html").anchors
    assert {
        "ddp_invariants.certify",
        "ddp_invariants.Implementation",
        "ddp_invariants.rules.own",
        "ddp_invariants.implementation.adapter.Adapter.after_backward",
        "ddp_invariants.search.strategies.training_cases",
    } <= anchors
