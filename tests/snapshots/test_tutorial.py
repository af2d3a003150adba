"""The tutorial: its commands, run in a reader's folder, print what it shows."""

import re
from pathlib import Path

from readme import STEP, TUTORIAL, part, shape, take, tidy, write_reader_file

from conftest import Session

TEXT = TUTORIAL.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ddp-invariants .*$", TEXT, re.MULTILINE)
SHOWN = {match["command"]: match for match in STEP.finditer(TEXT)}


def words(output: str) -> list[str]:
    """Return the words of an output without its numbers and the name of its stored violation."""
    return shape(re.sub(r"[0-9a-f]+\.json", "ID.json", output)).split()


def test_every_output_follows_the_command_that_prints_it() -> None:
    """An output is that of the last command before it."""
    for command, match in SHOWN.items():
        before = TEXT[: match.start()]
        assert [line for line in COMMANDS if line in before.splitlines()][-1] == command


def test_the_commands_of_the_tutorial_print_what_it_shows(session: Session, tmp_path: Path) -> None:
    """The wrapper holds its rule, and each break is reported in the words that are shown."""
    write_reader_file(tmp_path)
    statuses = {}
    # The hosts that tests share run in another folder.
    file = f"{tmp_path}/my_ddp.py:"
    for command in COMMANDS:
        done = take(command.replace("my_ddp.py:", file), tmp_path, session)
        statuses[command] = done.returncode
        if command in SHOWN:
            assert done.stdout, done.stderr
            match = SHOWN[command]
            printed = tidy(done.stdout.replace(file, "my_ddp.py:"))
            printed = part(printed, match["start"], match["end"])
            assert words(printed) == words(match["text"]), command
    assert len(statuses) == 5
    assert {command for command, status in statuses.items() if status} == {
        command for command in COMMANDS if "Never" in command
    }
    assert set(statuses.values()) == {0, 1}
