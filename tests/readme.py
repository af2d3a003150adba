"""What the documents show of commands and code: find it, run the commands, write it anew. `python tests/readme.py [--all]`."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gallery import table

from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.report.certificate.certificate import schema
from ddp_invariants.report.rulebook import explained

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SCHEMA = ROOT / "ddp_invariants" / "certificates" / "certificate.schema.json"
RULES = ROOT / "docs" / "rules.md"
ADAPTER = ROOT / "docs" / "adapter.md"
DOCUMENTS = (README, ADAPTER, ROOT / "examples" / "README.md")
BLOCK = re.compile(
    r"<!-- output of: (?P<command>[^\n]+) -->\n```text\n(?P<output>.*?)```", re.DOTALL
)
FILE = re.compile(
    r"<!-- file: (?P<path>\S+) from: (?P<start>[^\n]+) -->\n```python\n(?P<text>.*?)```", re.DOTALL
)
TABLE = re.compile(r"<!-- table -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)


def outputs() -> dict[str, str]:
    """Each command whose output a document shows, with that output."""
    return {
        match["command"]: match["output"]
        for document in DOCUMENTS
        for match in BLOCK.finditer(document.read_text(encoding="utf-8"))
    }


def json_keys(name: str) -> set[str]:
    """The keys that the document on JSON lists of a command, or of what is in what one prints."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}`[^|]*\| (.*) \|$", text, re.MULTILINE)
    words = {*re.findall(r"`([a-z_]+)`", row[1])} if row is not None else set()
    return words - {"ok", "warning", "problem"}


def excerpt(path: str, start: str) -> str:
    """A file from a line on."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return text[text.index(start) :]


def started(
    module: str, *arguments: str, environment: dict[str, str], seconds: int
) -> subprocess.CompletedProcess[str]:
    """A module run in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def run(command: str, start: Callable[..., subprocess.CompletedProcess[str]] = started) -> str:
    """What a command prints, without what belongs to one machine and moment."""
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


def plain() -> dict[str, str]:
    """The environment without what changes how much pytest prints: under CI it no longer shortens its summary lines."""
    telling = (
        "CI",
        "BUILD_NUMBER",
        "PYTEST_ADDOPTS",
        "FORCE_COLOR",
        "PY_COLORS",
        "COLUMNS",
        "LINES",
    )
    return {name: value for name, value in os.environ.items() if name not in telling} | {
        "COLUMNS": "80"
    }


def tidy(text: str) -> str:
    """Paths, plugins and times differ from run to run; lines about them are dropped or shortened."""
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
    """An output with its numbers, column widths and the order of its dots taken out: what must stay true of it."""
    lines = [
        re.sub(r"[\s=_─]+", " ", re.sub(r"\d[\d,.]*", "#", line)).strip()
        for line in text.splitlines()
    ]
    return "\n".join(line for line in lines if not re.fullmatch(r"[.s]+ \[#%\]", line))


def rules_page() -> str:
    """Every rule with all that is known of it, from where it is written down."""
    text = [
        "# The rules",
        "",
        "Made from the code by `python tests/readme.py`; `ddp-invariants rules GRAD-2` says the same of one.",
        "**Core**: of every implementation; **capability**: where one is offered; **declared**: where it is declared;",
        "**observed**: told, never judged.",
    ]
    for one in map(explained, ALL_RULES):
        faults = "; ".join(
            f"`{fault.name}` ({fault.what[:1].lower() + fault.what[1:].rstrip('.')})"
            for fault in one.faults
        )
        fields = {
            "judged": " ".join(one.judged.split()),
            "source": one.source,
            "needs": "; ".join(one.needs),
            "not claimed where it": "; ".join(one.not_claimed),
            "must catch": faults,
            "code": f"`ddp_invariants/{one.code.partition(':')[0]}`, `{one.property.partition(':')[0]}`",
        }
        text += [
            "",
            f"## {one.id}",
            "",
            f"{one.requirement} **{one.level.capitalize()}.**",
            "",
            *(f"- *{label}*: {told}" for label, told in fields.items() if told),
        ]
    return "\n".join(text) + "\n"


def main() -> None:
    """Write every output anew, the slow ones only when asked for; and what else is made from code."""
    SCHEMA.write_text(schema(), encoding="utf-8")
    RULES.write_text(rules_page(), encoding="utf-8")
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
                    f"```python\n{excerpt(match['path'], match['start'])}",
                ),
            )
        text = TABLE.sub(lambda _: f"<!-- table -->\n{table()}<!-- end -->", text)
        document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
