"""The options of a session: their definitions for pytest and for `certify`, and their checks."""

import argparse
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.errors import InvalidArgument

from ddp_invariants.cases.case import LARGEST_WORLD_SIZE, TrainingCase
from ddp_invariants.cases.levels import LEVELS
from ddp_invariants.discovery import deviations
from ddp_invariants.errors import CaseError, NamingError
from ddp_invariants.implementation.spec import OPTIONS, defaulting
from ddp_invariants.processes import backends, job
from ddp_invariants.records import reading
from ddp_invariants.search.places import SIMULATED_WORLD_SIZE
from ddp_invariants.search.split import Split
from ddp_invariants.session import option_texts, option_values, selection
from ddp_invariants.session.outputs import OutputFiles

PROFILES = {"quick": 30, "default": 100, "thorough": 1000}
"""Cases per property."""

MAX_WORLD_SIZE = 4
"""Largest world size drawn, unless a launcher or an option sets another one."""


def add(parser: pytest.Parser) -> None:
    """Add the options to pytest's own, or to a command's."""
    group = parser.getgroup("ddp-invariants", "data-parallel invariants")
    for name, option in OPTIONS.items():
        group.addoption(
            name,
            metavar=option.placeholder,
            help=option.text,
            default=[] if option.repeatable else option.default,
            action="append" if option.repeatable else "store",
        )
    _add_search(group)
    _add_deciding(group)
    _add_processes(group)
    _add_files(group)


def _add_search(group: pytest.OptionGroup) -> None:
    """Add the options that decide which cases are drawn."""
    group.addoption(
        "--profile",
        default="default",
        choices=sorted(PROFILES),
        help=defaulting(
            "number of cases per property: "
            + ", ".join(f"{name} {number}" for name, number in PROFILES.items()),
            "default",
        ),
    )
    group.addoption(
        "--cases",
        default=None,
        metavar="N",
        help=defaulting("number of cases per property", "the profile's"),
    )
    group.addoption(
        "--max-world-size",
        default=None,
        metavar="W",
        help=defaulting(
            option_texts.MAX_WORLD_SIZE,
            f"{SIMULATED_WORLD_SIZE}, or {MAX_WORLD_SIZE} if cases cannot be simulated; under "
            "torchrun or srun, the job's",
        ),
    )
    group.addoption(
        "--seed",
        default=None,
        metavar="N",
        help=defaulting(option_texts.SEED, "a new one, which is printed"),
    )
    group.addoption(
        "--shard",
        default=None,
        metavar="I/N",
        help=defaulting(
            "draw the I-th of N parts of the session, which share no case; --seed is needed, and "
            "merge adds the N certificates up",
            "the whole session",
        ),
    )


def _add_deciding(group: pytest.OptionGroup) -> None:
    """Add the options that say which verdicts decide the exit status."""
    group.addoption(
        "--level",
        default=LEVELS[-1],
        choices=LEVELS,
        help=defaulting(
            "levels that decide the exit status. core: the five invariants in ordinary programs; extended: "
            "also everything else that is offered; robust: also argument checks, exceptions, deaths "
            "and leaks, so everything",
            LEVELS[-1],
        ),
    )


def _add_processes(group: pytest.OptionGroup) -> None:
    """Add the options that decide how and where ranks run."""
    group.addoption(
        "--isolation",
        default="pooled",
        choices=("pooled", "fresh"),
        help=defaulting(
            "pooled: keep the ranks' processes between cases; fresh: start new processes and process "
            "groups for each case, which is slower",
            "pooled",
        ),
    )
    group.addoption("--deadline", default=None, metavar="S", help=option_texts.DEADLINE)
    group.addoption(
        "--backend",
        default="auto",
        choices=backends.BACKENDS,
        help=option_texts.BACKEND,
    )
    group.addoption(
        "--device",
        default=None,
        choices=backends.DEVICES,
        help=option_texts.DEVICE,
    )


def _add_files(group: pytest.OptionGroup) -> None:
    """Add the options that name files to read or to write."""
    group.addoption(
        "--deviations",
        default=[],
        action="append",
        metavar="FILE",
        help=option_texts.DEVIATIONS,
    )
    group.addoption(
        "--certificate",
        default=None,
        metavar="FILE",
        help=defaulting(
            "write a certificate, FILE.json, and its page, FILE.html; give either name",
            "none is written",
        ),
    )
    group.addoption(
        "--badge",
        default=None,
        metavar="FILE",
        help=defaulting(
            "write the verdict as JSON for an endpoint badge of shields.io", "none is written"
        ),
    )
    group.addoption(
        "--propose",
        default=None,
        metavar="FILE",
        help=defaulting(
            "write proposed declarations, for --declare: capabilities that the implementation "
            "refuses, or gets wrong in programs that are not ordinary",
            "they are printed",
        ),
    )
    group.addoption(
        "--replay",
        default=None,
        metavar="FILE",
        help=defaulting(
            "judge only the case in FILE, a stored violation or a bare case", "draw cases"
        ),
    )


def check(config: pytest.Config) -> None:
    """Refuse bad options before anything is started.

    Raises:
        CaseError: An option is bad; the message names it.
    """
    option = config.option
    _check_world_size(option)
    backends.wanted(option.backend, option.device)
    selection.check(config)
    output_files(config).check()
    _check_split(option)
    for file in option.deviations:  # Read before any rank starts; the probes read them again.
        deviations.read(Path(file))
    if option.replay is not None and (option.certificate or option.badge or option.propose):
        raise CaseError(
            "--replay judges one case and makes no certificate: leave out --certificate, --badge "
            "and --propose"
        )
    if option.replay is not None:
        case = reading.read(Path(option.replay))
        if isinstance(case, TrainingCase) and not option.world_size_given:
            option.max_world_size = max(option.max_world_size, case.ranks_needed)
        if isinstance(case, TrainingCase) and case.ranks_needed > option.max_world_size:
            raise CaseError(
                f"{option.replay}: the case needs {case.ranks_needed} ranks, but --max-world-size is "
                f"{option.max_world_size}: raise it"
            )


def read_numbers(config: pytest.Config) -> None:
    """Read the texts of the options that take whole numbers, in every process of a session.

    argparse would end pytest with a status of its own at a text that is none.

    Raises:
        NamingError: A text is no number, or one out of range.
    """
    for name, values in option_values.OF_SESSIONS.items():
        text = getattr(config.option, name)
        if text is None:
            continue
        try:
            setattr(config.option, name, values.read(text))
        except NamingError as error:
            raise NamingError(f"--{name.replace('_', '-')} {error}") from None
    if config.option.shard is not None:
        config.option.shard = Split.read(config.option.shard)
    _heed_hypothesis(config)


def _heed_hypothesis(config: pytest.Config) -> None:
    """Take the seed and the number of cases from Hypothesis' options, unless ours give them."""
    option = config.option
    seed = config.getoption("--hypothesis-seed", None) or ""
    if option.seed is None and seed.isdecimal():
        option.seed = int(seed)
    name = config.getoption("--hypothesis-profile", None)
    if option.cases is None and name:
        with suppress(InvalidArgument):  # Hypothesis itself refuses an unknown name.
            option.cases = settings.get_profile(name).max_examples


def cases_per_property(option: argparse.Namespace) -> int:
    """Return the number of cases per property, of all parts of a session together."""
    return int(option.cases or PROFILES[option.profile])


def _check_split(option: argparse.Namespace) -> None:
    """Refuse a part of a session whose other parts would not fit it."""
    if option.shard is None:
        return
    if option.seed is None or option.replay is not None:
        raise CaseError(
            f"--shard {option.shard} needs --seed, the same for all parts"
            if option.replay is None
            else "--replay judges one case, which cannot be split: leave out --shard"
        )
    option.shard.cases(cases_per_property(option))


def _check_world_size(option: argparse.Namespace) -> None:
    """Set the largest world size if it was not given, and refuse one that is not available."""
    led = job.led()
    option.world_size_given = option.max_world_size is not None or led is not None
    if option.max_world_size is None:
        option.max_world_size = (
            MAX_WORLD_SIZE if led is None else min(led.job.world_size, LARGEST_WORLD_SIZE)
        )
    if led is not None and option.max_world_size > led.job.world_size:
        raise CaseError(
            f"--max-world-size {option.max_world_size}: the job has {led.job.world_size} ranks"
        )


def output_files(config: pytest.Config) -> OutputFiles:
    """Return the files that the session is to write."""
    option = config.option
    # An empty name is refused: it may come from a variable that is not set.
    return OutputFiles(
        *(
            None if name is None else Path(name)
            for name in (option.certificate, option.badge, option.propose)
        )
    )
