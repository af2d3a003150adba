"""Generated bad inputs: options of every command, and valid files that were changed.

Every input ends in one sentence with the documented status, and none in a traceback. Commands run in
this process. A command that accepts its input ends where it would start ranks.
"""

import gzip
import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from certificates import certified
from click.testing import CliRunner, Result
from handmade import CASE, everywhere, right
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddp_invariants.cases.case import to_json
from ddp_invariants.cli import main
from ddp_invariants.errors import INCONCLUSIVE, USAGE, VIOLATED
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import hosts
from ddp_invariants.records import violation
from ddp_invariants.records.verdict import Failure
from ddp_invariants.report.certificate import page
from ddp_invariants.report.certificate.certificate import to_json as certificate_json
from ddp_invariants.session import state
from ddp_invariants.upgrades import baseline, interpreter
from ddp_invariants.upgrades.baseline import FORM, Environment, Head
from ddp_invariants.upgrades.comparison import Offer


class Started(Exception):
    """A command accepted its input, and was about to start ranks."""


MANY = int(os.environ.get("BAD_INPUTS", "110"))
"""Inputs of each test; a search for new mistakes takes thousands."""
bounded = settings(
    max_examples=MANY,
    derandomize="BAD_INPUTS" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
LONGEST = 2500
"""Characters of all that a refusal prints; a sentence that lists the capabilities has most of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of the inputs, in which commands run and start no ranks."""

    def start(*_: Any, **__: Any) -> None:
        raise Started

    def end(*_: Any, **__: Any) -> None:
        pytest.exit("started", returncode=0)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("pool", "compare", "violations", "searching"):
            patch.setattr(f"ddp_invariants.cli.{module}.Hosts", start)
        patch.setattr(hosts, "Hosts", start)
        patch.setattr(interpreter, "_answered", _refuse_to_run)
        patch.setattr(state, "Hosts", end)
        at = tmp_path_factory.mktemp("inputs")
        patch.chdir(at)
        (at / "folder").mkdir()
        (at / "binary").write_bytes(bytes(range(256)))
        (at / "empty").write_bytes(b"")
        write_valid(at)
        yield at


def _refuse_to_run(python: str, *_: Any) -> None:
    """Stand in for an interpreter: no text that is drawn may be run as a program."""
    raise Started(python)


def run(words: list[str]) -> Result:
    """Run a command; a mistake of the suite is raised as it is."""
    result = CliRunner().invoke(main, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit | Started):
        raise result.exception
    return result


def require_refused(result: Result, words: list[str], statuses: tuple[int, ...] = (USAGE,)) -> None:
    """Require that a command ended with a documented status and one sentence."""
    told = [
        line
        for line in result.output.splitlines()
        if line.startswith(("Error: ", "ddp-invariants: ", "REFUSED: ", "Exit: ddp-invariants: "))
    ]
    assert not isinstance(result.exception, Started), (words, "it was accepted")
    assert result.exit_code in statuses, (words, result.exit_code, result.output)
    assert len(told) == 1, (words, result.output)
    assert "Traceback" not in result.output, words
    assert len(result.output) <= LONGEST, (words, len(result.output), result.output[:3000])


# Options.


WRONG_NUMBERS = st.sampled_from(
    [
        "",
        "-5",
        "1.5",
        "nan",
        "1e3",
        "٣",
        "0x10",
        "9" * 400,
        "9" * 5000,
        " 3",
        "many",
        "--",
        "\udcff",
    ]
)
WRONG_NAMES = st.sampled_from(
    ["", ":", "a:", ":b", "refrence", "no/such/file.py:X", "x" * 300 + ".py:X", "a b", "\udcff"]
)
WRONG_PAIRS = st.sampled_from(["", "=", "=1", "novalue", "1=2", "a b=c", "\n", "x" * 300])
WRONG_FILES = st.sampled_from(
    ["", "none", "none/none.json", "folder", "binary", "x" * 300, "\udcff", "binary/below"]
)
WRONG_WORDS = st.text("abcxyz-_=.", min_size=1, max_size=12)
BY_NAME = {
    "--ddp": WRONG_NAMES,
    "--sampler": WRONG_NAMES,
    "--ddp-arg": WRONG_PAIRS,
    "--opt-arg": WRONG_PAIRS,
    "--sampler-arg": WRONG_PAIRS,
    "--declare": WRONG_FILES.filter(bool),
    "--deviations": WRONG_FILES,
    "--accept": WRONG_FILES,
    "--baseline": WRONG_FILES,
    "--replay": WRONG_FILES,
    "--catalogue": WRONG_FILES,
    "--rules": WRONG_FILES,
    "--certificate": st.sampled_from(["", "it.pdf", "none/it.json", "folder", "binary/it.json"]),
    "--badge": st.sampled_from(["", "folder", "none/badge.json", "binary/badge.json"]),
    "--propose": st.sampled_from(["", "folder", "none/it.toml", "binary/it.toml"]),
    "--pin": st.sampled_from(["folder", "none/pin.toml", "binary/pin.toml"]),
    "--out": st.sampled_from(["folder", "none/out", "binary/out"]),
    "--scripts": st.sampled_from(["binary", "binary/scripts"]),
    "--workers": WRONG_NUMBERS,
    "--only": st.sampled_from(["nosuchrule", "grad2 and", "(", "GRAD-200", "\udcff"]),
}
"""Wrong values of the options whose type does not say which values are wrong.

Only a rank knows whether a name of --opt, --setup, --start, --finish or --after exists.
`test_interpreter.py` has the interpreters.
"""
NEEDED = {
    "replay": ["case.json"],
    "export": ["violation.json"],
    "verify": ["certificate.json"],
    "compare": ["--baseline", "baseline.gz"],
    "record": ["--out", "new.gz"],
}
"""The words that make a command complete."""


@dataclass(frozen=True)
class Offered:
    """An option of a command, with a strategy of wrong values."""

    command: str
    option: str
    values: st.SearchStrategy[str] = field(repr=False)


def _offered() -> list[Offered]:
    """Return all options that take a value that can be wrong."""
    listed = []
    with main.make_context("ddp-invariants", ["rules"]) as context:
        for name in main.list_commands(context):
            command = main.get_command(context, name)
            assert command is not None
            for option in command.get_params(context):
                if not isinstance(option, click.Option) or option.is_flag or option.count:
                    continue
                flag = max(option.opts, key=len)
                if option.type.name == "integer":
                    values = WRONG_NUMBERS
                elif isinstance(option.type, click.Choice):
                    values = WRONG_WORDS
                elif flag in BY_NAME:
                    values = BY_NAME[flag]
                else:
                    continue
                listed.append(Offered(name, flag, values))
    return listed


@pytest.mark.usefixtures("folder")
@bounded
@given(offered=st.deferred(lambda: st.sampled_from(_offered())), data=st.data())
def test_a_wrong_value_of_any_option_is_refused_in_one_sentence(
    offered: Offered, data: st.DataObject
) -> None:
    """A wrong value ends with status 64 and one sentence, whatever the command and the option."""
    value = data.draw(offered.values)
    words = [offered.command, *NEEDED.get(offered.command, []), f"{offered.option}={value}"]
    require_refused(run(words), words)


@pytest.mark.usefixtures("folder")
@bounded
@given(
    command=st.sampled_from([*NEEDED, "certify", "discover", "faults", "rules", "doctor", "init"]),
    word=WRONG_WORDS,
)
def test_an_unknown_option_or_word_is_refused_in_one_sentence(command: str, word: str) -> None:
    """An option that no command has, and a command that does not exist, end with status 64."""
    for words in ([command, *NEEDED.get(command, []), f"--q{word}"], [f"q{word}"]):
        require_refused(run(words), words)


# Files.


DECLARATIONS = '[ddp]\nunsupported = ["unused"]\nreduction = "mean"\n[sampler]\npadding = "wrap"\n'
DEVIATIONS = """[[deviation]]
ddp = "torch"
capability = "unused"
torch = ">=2.0"
reason = "known"
link = "https://example.org"
expires = 2100-01-01
"""
ACCEPTED = """[[accepted]]
change = "discrete: collectives: one broadcast fewer; in every case"
reason = "read"
expires = 2100-01-01
"""
CATALOGUE = '''"""Wrappers."""


class Wrong:
    """Summed, never divided (mine). GRAD-2: summed, never divided."""
'''
FILES = {
    "declarations.toml": ["discover", "--declare"],
    "deviations.toml": ["discover", "--deviations"],
    "accepted.toml": ["compare", "--baseline", "baseline.gz", "--accept"],
    "case.json": ["replay"],
    "violation.json": ["export"],
    "certificate.json": ["verify"],
    "certificate.html": ["verify"],
    "baseline.gz": ["compare", "--baseline"],
    "catalogue.py": ["faults", "--catalogue"],
}
"""The files that commands read, and the words that make a command read one."""


def write_valid(at: Path) -> None:
    """Write a valid file of each kind."""
    failure = Failure("GRAD-2", "wrong", "rank 0", "1")
    stored = violation.of(
        CASE, failure, Ddp(), Sampler(), confirmed=(3, 3), evidence=right(), repeat=""
    )
    offer = {"defaults": {}, "target": "reference", "name": "reference"}
    head = Head(
        "0.1.0",
        FORM,
        Environment("python", "2.13.0", "2.0", "3.12"),
        Offer(offer, offer, {}, {"python": "3.12"}),
        "",
        0,
        2,
    )
    wrong = everywhere(right(), "reduced", 1, "layers.4.factor", lambda values: values + 1)
    baseline.write(at / "baseline.gz", head, [right(), wrong])
    violation.write(stored, at / "violation.json")
    for name, text in {
        "declarations.toml": DECLARATIONS,
        "deviations.toml": DEVIATIONS,
        "accepted.toml": ACCEPTED,
        "catalogue.py": CATALOGUE,
        "case.json": to_json(CASE),
        "certificate.json": certificate_json(certified()),
        "certificate.html": page.render(certified(), drawn=False),
    }.items():
        (at / name).write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", FILES)
def test_each_valid_file_is_accepted(name: str) -> None:
    """The files that are changed below are valid: a command accepts them, or verifies them."""
    result = run([*FILES[name], name])
    assert isinstance(result.exception, Started) or result.exit_code == 0, result.output


@dataclass(frozen=True)
class Content:
    """The content of a file, which no error message repeats."""

    whole: bytes = field(repr=False)


@st.composite
def changes(draw: st.DrawFn, valid: Content) -> bytes:
    """Draw a change of a file: bytes flipped, cut off, taken out or doubled, or noise."""
    content = valid.whole
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    kind = draw(st.sampled_from(["flip", "cut", "remove", "double", "insert", "noise"]))
    length = draw(st.integers(1, 64))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "remove":
        return content[:at] + content[at + length :]
    if kind == "double":
        return content[: at + length] + content[at:]
    noise = draw(st.binary(max_size=64))
    return content[:at] + noise + content[at:] if kind == "insert" else noise


OTHERS: tuple[Any, ...] = (None, True, -1, 10**30, 1.5, "", "x", [], [[]], {}, {"x": 1})
"""Values of every type of JSON, in place of one that a file holds."""


def _paths(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value within plain data."""
    yield path
    if isinstance(plain, dict | list):
        for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from _paths(value, (*path, key))


@cache
def _places(content: bytes, *, in_toml: bool) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return the data of a file, and the place of each value in them."""
    plain = (tomllib.loads if in_toml else json.loads)(content.decode())
    return plain, list(_paths(plain))


def _swapped(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return plain data with another value at a place; None takes a key out."""
    if not path:
        return value
    changed = plain.copy()
    if value is None and isinstance(plain, dict) and len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = _swapped(plain[path[0]], path[1:], value)
    return changed


def toml(plain: Any) -> str:
    """Return plain data of two levels as TOML; JSON's values are values of TOML, but for null."""
    if not isinstance(plain, dict):
        return f"x = {json.dumps(plain, default=str)}"
    lines = [f"{key} = {_inline(value)}" for key, value in plain.items()]
    return "\n".join(lines)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return str(value) if hasattr(value, "isoformat") else json.dumps(value)


@st.composite
def swaps(draw: st.DrawFn, name: str, valid: Content) -> bytes:
    """Draw a change of one value of a structured file to a value of another type."""
    content = valid.whole
    if name.endswith(".gz"):
        lines = gzip.decompress(content).splitlines()
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = draw(swaps("line.json", Content(lines[number])))
        return gzip.compress(b"\n".join(lines) + b"\n", mtime=0)
    in_toml = name.endswith(".toml")
    plain, places = _places(content, in_toml=in_toml)
    path = draw(st.sampled_from(places))
    value = draw(st.sampled_from(OTHERS))
    changed = _swapped(plain, path, value)
    return (toml(changed) if in_toml else json.dumps(changed)).encode()


STRUCTURED = [name for name in FILES if not name.endswith((".html", ".py"))]


def _require_told(folder: Path, name: str, content: bytes) -> None:
    """Require that a command accepts a changed file, or refuses it in one sentence.

    `verify` may also find a whole certificate. An argument of an implementation is not judged here.
    """
    changed = f"changed-{name}"
    (folder / changed).write_bytes(content)
    words = [*FILES[name], changed]
    result = run(words)
    if isinstance(result.exception, Started):
        return
    if words[0] == "verify":
        assert result.exit_code in (0, VIOLATED, INCONCLUSIVE), (words, result.output)
        if not result.output.startswith("REFUSED: "):
            return
    require_refused(result, words, (INCONCLUSIVE,) if words[0] == "verify" else (USAGE,))


@bounded
@given(name=st.sampled_from([*FILES]), data=st.data())
def test_a_damaged_file_is_refused_in_one_sentence(
    folder: Path, name: str, data: st.DataObject
) -> None:
    """Bytes of a valid file are flipped, cut off, taken out, doubled, put in, or replaced."""
    _require_told(folder, name, data.draw(changes(Content((folder / name).read_bytes()))))


@bounded
@given(name=st.sampled_from(STRUCTURED), data=st.data())
def test_a_value_of_another_type_is_refused_in_one_sentence(
    folder: Path, name: str, data: st.DataObject
) -> None:
    """One value of a valid file becomes a value of another type, or is taken out."""
    _require_told(folder, name, data.draw(swaps(name, Content((folder / name).read_bytes()))))
