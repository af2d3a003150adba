"""Arguments of a sampler that stand for values of the case, such as `num_workers=WORLD_SIZE`."""

from dataclasses import replace
from pathlib import Path

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.errors import LoadError
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.driving.case_values import NAMES, SPELLED, CaseValue, case_value_of
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.shards import shards
from ddp_invariants.records.evidence import ShardEvidence
from ddp_invariants.situations.asking import ChangedLength

VALUES = {
    "rank": 1,
    "world_size": 3,
    "samples": 20,
    "batch_size": 4,
    "seed": 7,
    "epoch": 2,
    "shuffle": True,
    "drop_last": False,
}
CASE = ShardCase(world_size=2, data=Data(samples=6, batch_size=2), epochs=(0, 3))


@pytest.mark.parametrize(
    ("text", "value", "spelled"),
    [
        ("RANK", 1, "rank"),
        ("WORLD_SIZE", 3, "world_size"),
        ("SHUFFLE", True, "SHUFFLE"),
        ("DROP_LAST", False, "DROP_LAST"),
        ("BATCH_SIZE*WORLD_SIZE", 12, "BATCH_SIZE * world_size"),
        ("(SAMPLES + 1) * 2 - RANK", 41, "(SAMPLES + 1) * 2 - rank"),
        ("SAMPLES//(2*WORLD_SIZE)", 3, "SAMPLES // (2 * world_size)"),
        ("EPOCH*SAMPLES", 40, "epoch * SAMPLES"),
        ("SEED+EPOCH", 9, "SEED + epoch"),
    ],
)
def test_a_name_or_a_calculation_stands_for_a_value_of_the_case(
    text: str, value: int, spelled: str
) -> None:
    """It is calculated anew from the values of each case, and a script says the same."""
    read = case_value_of(text)
    assert isinstance(read, CaseValue)
    assert read.of(VALUES) == value
    assert read.spelled == spelled
    assert eval(spelled, {SPELLED[name]: each for name, each in VALUES.items()}) == value  # noqa: S307 - the source is above


def test_each_value_has_a_name_and_a_spelling() -> None:
    """A value without either could not be given or exported."""
    assert {*NAMES.values()} == {*SPELLED} == {*VALUES}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rank", "rank"),
        ("world_size", "world_size"),
        ("sequential", "sequential"),
        ("int8-fused", "int8-fused"),
        ("'RANK'", "RANK"),
        ("'SAMPLES // 2'", "SAMPLES // 2"),
        ("3", 3),
        ("None", None),
        ("ALL OF THEM", "ALL OF THEM"),
    ],
)
def test_any_other_text_is_read_as_before(text: str, value: object) -> None:
    """A name in lower case, a quoted name, a literal and other text are no values of the case."""
    assert case_value_of(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("WORLDSIZE", "a case has no value WORLDSIZE; did you mean WORLD_SIZE?"),
        ("NCCL", "a case has no value NCCL; a case has RANK, WORLD_SIZE, SAMPLES"),
        ("BATCH_SIZE*GPUS", "a case has no value GPUS"),
        ("WORLD_SIZE/2", "it cannot have WORLD_SIZE / 2"),
        ("2**RANK", "it cannot have 2 ** RANK"),
        ("RANK*1.5", "it cannot have 1.5"),
        ("RANK + True", "it cannot have True"),
        ("-RANK", "it cannot have -RANK"),
        ("[RANK]", "it cannot have [RANK]"),
        ("RANK.real", "it cannot have RANK.real"),
        ("print(RANK)", "it cannot have print(RANK)"),
        ("rank + RANK", "a case has no value rank"),
        ("8//RANK", "RANK may be 0"),
        ("8//(WORLD_SIZE-1)", "WORLD_SIZE - 1 may be 0"),
        ("RANK//0", "0 may be 0; divide by a number above 0"),
        ("SHUFFLE*2", "SHUFFLE is true or false"),
        ("SEED//2", "SEED // 2 may be equal for two values of SEED"),
        ("EPOCH*RANK", "EPOCH * RANK may be equal for two values of EPOCH"),
        ("SEED-SEED", "SEED - SEED may be equal for two values of SEED"),
    ],
)
def test_a_text_that_is_meant_for_a_value_and_is_none_is_an_error(text: str, words: str) -> None:
    """No such text reaches the sampler, and no other code of the text runs."""
    with pytest.raises(LoadError) as error:
        SamplerMaker(Sampler("torch", (("seed", text),)))
    assert words in str(error.value)
    assert f"--sampler torch: seed={text}: " in str(error.value)
    assert f"if text is meant, quote it: seed={text!r}" in str(error.value)


ODD = """
class Odd:
    def __init__(self, how_many, workers, me, together, *, mixed=True, first=0):
        self.own = range(first + me, how_many, workers)
        self.together = together
        self.mixed = mixed

    def __iter__(self):
        return iter(self.own)
"""
"""A sampler none of whose arguments has a usual name."""

GIVEN = (
    ("how_many", "SAMPLES"),
    ("workers", "WORLD_SIZE"),
    ("me", "RANK"),
    ("together", "BATCH_SIZE*WORLD_SIZE"),
    ("mixed", "SHUFFLE"),
)


def odd(folder: Path, *given: tuple[str, str]) -> SamplerMaker:
    """Return the maker of the sampler, with arguments."""
    path = folder / "odd.py"
    path.write_text(ODD)
    return SamplerMaker(Sampler(f"{path}:Odd", given))


def test_a_sampler_with_unusual_names_gets_the_values_of_each_case(tmp_path: Path) -> None:
    """Its rank is an argument, so the suite asks it for ranks that do not exist, too."""
    make = odd(tmp_path, *GIVEN)
    answer = shards(CASE, make, disturb=1)
    assert answer["shards"][0] == [[0, 2, 4], [1, 3, 5]]
    assert answer["refused"] == {
        "rank below 0": None,
        "rank equal to world size": None,
        "world size 0": "ValueError",
        "world size below 0": None,
    }
    made = make(6, 3, 1, shuffle=False, seed=0, drop_last=False, batch_size=4)
    assert (made.together, made.mixed) == (12, False)


def test_the_description_says_which_argument_takes_what(tmp_path: Path) -> None:
    """The lines, the drawn values and a script treat such an argument as one with a usual name."""
    described = odd(tmp_path, *GIVEN).describe()
    assert described.driven == (
        "over a length as 'how_many'",
        "rank as 'me'",
        "world size as 'workers'",
        "shuffle as 'mixed'",
        "BATCH_SIZE * WORLD_SIZE as 'together'",
        "no set_epoch: each iteration is the next epoch",
    )
    assert "given_rank" not in described.lacks
    assert "shuffle" not in described.lacks
    assert "drop_last" in described.lacks
    assert described.source["rows"] == [
        ["how_many", "SAMPLES"],
        ["workers", "world_size"],
        ["me", "rank"],
        ["mixed", "SHUFFLE"],
        ["together", "BATCH_SIZE * world_size"],
    ]


def test_an_argument_with_a_usual_name_may_be_another_thing(tmp_path: Path) -> None:
    """The argument that a user gives the number of samples comes before a usual name for it."""
    path = tmp_path / "sized.py"
    path.write_text(
        "def sized(count, size, rank, world_size):\n    return range(rank, count, world_size)"
    )
    make = SamplerMaker(Sampler(f"{path}:sized", (("count", "SAMPLES"), ("size", "224"))))
    assert make.source == "count"
    assert ["size", "224"] in make.describe().source["rows"]
    assert SamplerMaker(Sampler(f"{path}:sized", (("count", "3"),))).source == "size"


def test_a_calculation_with_the_epoch_makes_the_sampler_anew(tmp_path: Path) -> None:
    """The suite calls no `set_epoch` for an argument that depends on the epoch."""
    make = odd(tmp_path, *GIVEN, ("first", "EPOCH*WORLD_SIZE"))
    assert make.remade_each_epoch
    assert shards(CASE, make, disturb=1)["shards"] == [[[0, 2, 4], [1, 3, 5]], [[], []]]
    assert not odd(tmp_path, *GIVEN).remade_each_epoch


def test_an_argument_for_the_data_takes_nothing_but_their_number(tmp_path: Path) -> None:
    """Another length would be judged by the rules of the case's length."""
    path = tmp_path / "counted.py"
    path.write_text(
        "def counted(dataset, rank, world_size):\n    return range(rank, dataset, world_size)"
    )
    with pytest.raises(LoadError, match="dataset takes the data to shard, or SAMPLES"):
        SamplerMaker(Sampler(f"{path}:counted", (("dataset", "SAMPLES*2"),)))
    make = SamplerMaker(Sampler(f"{path}:counted", (("dataset", "SAMPLES"),)))
    assert shards(CASE, make, disturb=1)["shards"][0] == [[0, 2, 4], [1, 3, 5]]


COUNTING = """
class Counting:
    def __init__(self, dataset, rank, world_size, number):
        self.own = range(rank, number, world_size)

    def __iter__(self):
        return iter(self.own)
"""


def test_a_sampler_that_is_told_the_length_gets_no_other_one(tmp_path: Path) -> None:
    """The dataset's length cannot change behind an argument that the program has already given."""
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    make = SamplerMaker(Sampler(f"{path}:Counting", (("number", "SAMPLES"),)))
    assert make.source_kind == "dataset"
    case = replace(CASE, situations=(ChangedLength(2),))
    assert shards(case, make, disturb=1)["asked"][0]["got"] == [None, None]


def test_a_sampler_without_a_seed_of_the_case_keeps_its_order_under_any_seed() -> None:
    """A user's own seed does not follow the case's seed, so no rule compares two seeds."""
    case = replace(CASE, data=Data(samples=40, shuffle=True))
    for text, compared in (("3", False), ("SEED+1", True)):
        make = SamplerMaker(Sampler("torch", (("seed", text),)))
        answer = shards(case, make, disturb=1)
        assert (answer["reseeded"] is not None) is compared
        assert judge(ShardEvidence(case, (answer, answer)))["SHARD-4"].failure is None


def test_a_rank_of_none_is_asked_for() -> None:
    """With None the sampler finds its rank by itself, as without the argument."""
    make = SamplerMaker(Sampler("torch", (("rank", "None"), ("num_replicas", "None"))))
    assert make.asks
    assert shards(CASE, make, disturb=1)["refused"] == {}
    assert (
        judge(ShardEvidence(CASE, (shards(CASE, make, disturb=1),) * 2))["SHARD-3"].failure is None
    )
