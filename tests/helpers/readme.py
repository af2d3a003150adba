"""The outputs, excerpts and tables that documents show, and the program that rewrites them.

`python tests/helpers/readme.py` runs the commands of pytest. With `--all` it runs the benchmarks,
too.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import rule_pages
from gallery import table
from tried import TRIED, tried_page

from ddp_invariants import errors
from ddp_invariants.cli import init
from ddp_invariants.cli import main as cli
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.required import SAMPLING
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.report.certificate.certificate import schema

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
WORKFLOW = ROOT / "examples" / "upgrade.yml"
SCHEMA = ROOT / "ddp_invariants" / "report" / "certificate" / "certificate.schema.json"
ADAPTER = ROOT / "docs" / "adapter.md"
USAGE = ROOT / "docs" / "usage.md"
CAPABILITY_PAGE = ROOT / "docs" / "capabilities.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
DOCUMENTS = (
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
)
BLOCK = re.compile(
    r"<!-- output of: (?P<command>[^\n]+) -->\n```text\n(?P<output>.*?)```", re.DOTALL
)
FILE = re.compile(
    r"<!-- file: (?P<path>\S+) from: (?P<start>[^\n]+?)(?: to: (?P<end>[^\n]+))? -->\n"
    r"```python\n(?P<text>.*?)```",
    re.DOTALL,
)
STEP = re.compile(
    r"<!-- run: (?P<command>[^\n]+) from: (?P<start>[^\n]+) to: (?P<end>[^\n]+) -->\n"
    r"```text\n(?P<text>.*?)```",
    re.DOTALL,
)
"""A part of a command's output in the tutorial."""
PART = re.compile(
    r"<!-- part of: (?P<command>[^\n]+) from: (?P<start>[^\n]+) to: (?P<end>[^\n]+) -->\n"
    r"```text\n(?P<text>.*?)```",
    re.DOTALL,
)
SPEED = re.compile(r"<!-- speed -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
THROUGHPUT = "python benchmarks/throughput.py"
SPEED_ROWS = {
    "this pool, evidence included": "this suite: a case run and recorded",
    "and judged by all rules": "and judged by all rules",
    "bare loop": "a hand-written loop, same training, nothing recorded",
    "spawn per case": "new processes for every case (spawn)",
}
"""Rows of the benchmark's first table, and their names in the README."""
STATUSES = re.compile(r"<!-- statuses -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
OFFERED = re.compile(
    r"<!-- capabilities of: (?P<side>\w+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL
)
TABLE = re.compile(r"<!-- table -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)


def outputs() -> dict[str, str]:
    """Return the output that the documents show, by command."""
    return {
        match["command"]: match["output"]
        for document in DOCUMENTS
        for match in BLOCK.finditer(document.read_text(encoding="utf-8"))
    }


def json_keys(name: str) -> set[str]:
    """Return the keys that docs/json.md lists for a command or for a part of its output."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}`[^|]*\| (.*) \|$", text, re.MULTILINE)
    words = {*re.findall(r"`([a-z_]+)`", row[1])} if row is not None else set()
    return words - {"ok", "warning", "problem"}


def part(output: str, start: str, end: str) -> str:
    """Return the lines of an output between two lines, which are known by their first words."""
    lines = output.splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if line.strip().startswith(start))
    last = next(
        index for index, line in enumerate(lines) if index > first and line.strip().startswith(end)
    )
    return "".join(lines[first : last + 1])


def speed_table() -> str:
    """Return some rows of the benchmark's first table, the one in milliseconds, as Markdown."""
    rows = {}
    for line in outputs()[THROUGHPUT].partition("└")[0].splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if cells and cells[0] in SPEED_ROWS:
            rows[cells[0]] = f"| {SPEED_ROWS[cells[0]]} | {' | '.join(cells[1:])} |\n"
    head = "| | 1 rank | 2 ranks | 3 ranks | 4 ranks |\n|---|---|---|---|---|\n"
    return head + "".join(rows[name] for name in SPEED_ROWS)


def workflow() -> str:
    """Return the workflow for upgrades as `init --upgrade` writes it, with the tested torch."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    tested = re.search(r"^torch==([\d.]+)$", pinned, re.MULTILINE)
    assert tested is not None
    return init.example(tested[1])


def statuses_table() -> str:
    """Return the exit statuses of each command, from its help, as Markdown."""
    columns = ("0", "1", "2", "73")
    rows = [f"| command | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    with cli.make_context("ddp-invariants", ["rules"]) as context:
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            assert command is not None
            listed = re.fullmatch(r"Exit status: (.+)\.", command.epilog or "")
            assert listed is not None, name
            meanings = dict(entry.split(" ", 1) for entry in listed[1].split("; "))
            assert meanings.keys() <= {*columns, str(errors.USAGE), str(errors.INTERRUPTED)}, name
            cells = (meanings.get(status, "") for status in columns)
            rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def capabilities_table(side: str) -> str:
    """Return the capabilities of all DDPs or of all samplers, as Markdown.

    Args:
        side: `ddp` or `sampler`.
    """
    if side == "sampler":
        head = "| name | meaning |\n|---|---|\n"
        return head + "".join(f"| `{name}` | {CAPABILITIES[name]} |\n" for name in SAMPLING)
    rows = ["| name | meaning | level |", "|---|---|---|"]
    for name in (name for name in CAPABILITIES if name not in SAMPLING):
        level = TRAINING[name].level if name in TRAINING else "extended"
        rows.append(f"| `{name}` | {CAPABILITIES[name]} | {level} |")
    return "\n".join(rows) + "\n"


def excerpt(path: str, start: str, end: str | None = None) -> str:
    """Return the text of a file from a given line to another one, or to the file's end."""
    text = (ROOT / path).read_text(encoding="utf-8")
    text = text[text.index(start) :]
    return text if end is None else text[: text.index(end)].rstrip() + "\n"


def started(
    module: str, *arguments: str, environment: dict[str, str], seconds: int, at: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=at,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def run(command: str, start: Callable[..., subprocess.CompletedProcess[str]] = started) -> str:
    """Return a command's output, without the parts that depend on the machine or the time."""
    name, *words = shlex.split(command)
    if name == "pytest":
        done = start(name, "-p", "no:cacheprovider", *words, environment=plain(), seconds=1800)
    else:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=plain(),
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
    return tidy(done.stdout)


def write_reader_file(folder: Path) -> None:
    """Write the file of the tutorial's reader, with all that the tutorial adds to it."""
    text = excerpt("examples/my_ddp.py", "from typing")
    (folder / "my_ddp.py").write_text(text, encoding="utf-8")


def take(
    command: str, folder: Path, start: Callable[..., subprocess.CompletedProcess[str]] = started
) -> subprocess.CompletedProcess[str]:
    """Run a command of the tutorial in a reader's folder."""
    _, name, *words = shlex.split(command)
    # Workers would cost seconds, and change nothing that is shown.
    alone = ("-n", "0") if name == "certify" else ()
    return start(
        "ddp_invariants", name, *words, *alone, environment=plain(), seconds=600, at=folder
    )


def plain() -> dict[str, str]:
    """Return the environment without the variables that change how much pytest prints.

    Under CI, for example, pytest no longer shortens its summary lines.
    """
    removed = (
        "CI",
        "BUILD_NUMBER",
        "PYTEST_ADDOPTS",
        "FORCE_COLOR",
        "PY_COLORS",
        "COLUMNS",
        "LINES",
    )
    return {name: value for name, value in os.environ.items() if name not in removed} | {
        "COLUMNS": "80"
    }


def tidy(text: str) -> str:
    """Drop or shorten the lines about paths, plugins and times, which differ from run to run."""
    text = text.replace(str(ROOT), "…")
    dropped = (
        "platform ",
        "rootdir:",
        "plugins:",
        "configfile:",
        "bringing up nodes",
        "created:",
        "[gw",
    )
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(dropped)]
    lines = [re.sub(r" in [\d.]+s( \([\d:]+\))?", "", line) for line in lines]
    return re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip() + "\n"


def shape(text: str) -> str:
    """Return an output without its numbers, column widths and order of dots: the stable part."""
    lines = [
        re.sub(r"[\s=_─]+", " ", re.sub(r"\d[\d,.]*", "#", line)).strip()
        for line in text.splitlines()
    ]
    return "\n".join(line for line in lines if not re.fullmatch(r"[.s]+ \[#%\]", line))


def main() -> None:
    """Update every output and everything else that is made from code.

    The slow outputs are updated only with `--all`.
    """
    SCHEMA.write_text(schema(), encoding="utf-8")
    rule_pages.write()
    WORKFLOW.write_text(workflow(), encoding="utf-8")
    TRIED.write_text(tried_page(), encoding="utf-8")
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match["command"].startswith("pytest") or "--all" in sys.argv:
                shown = match[0].replace(
                    f"```text\n{match['output']}", f"```text\n{run(match['command'])}"
                )
                text = text.replace(match[0], shown)
        for match in FILE.finditer(text):
            text = text.replace(
                match[0],
                match[0].replace(
                    f"```python\n{match['text']}",
                    f"```python\n{excerpt(match['path'], match['start'], match['end'])}",
                ),
            )
        text = TABLE.sub(lambda _: f"<!-- table -->\n{table()}<!-- end -->", text)
        text = STATUSES.sub(lambda _: f"<!-- statuses -->\n{statuses_table()}<!-- end -->", text)
        for match in OFFERED.finditer(text):
            listed = match[0].replace(match["table"], capabilities_table(match["side"]))
            text = text.replace(match[0], listed)
        document.write_text(text, encoding="utf-8")
    write_tutorial()
    _write_parts()


def write_tutorial() -> None:
    """Run the commands of the tutorial, and rewrite the parts of their outputs that it shows."""
    text = TUTORIAL.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        write_reader_file(Path(folder))
        for match in STEP.finditer(text):
            output = tidy(take(match["command"], Path(folder)).stdout)
            shown = part(output, match["start"], match["end"])
            written = match[0].replace(f"```text\n{match['text']}```", f"```text\n{shown}```")
            text = text.replace(match[0], written)
    TUTORIAL.write_text(text, encoding="utf-8")


def _write_parts() -> None:
    """Rewrite the excerpts of outputs that another document shows in full."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in PART.finditer(text):
            shown = part(outputs()[match["command"]], match["start"], match["end"])
            written = match[0].replace(f"```text\n{match['text']}```", f"```text\n{shown}```")
            text = text.replace(match[0], written)
        for match in SPEED.finditer(text):
            text = text.replace(match[0], f"<!-- speed -->\n{speed_table()}<!-- end -->")
        document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
