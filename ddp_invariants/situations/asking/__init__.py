"""The ways in which a program asks a sampler: one module for each, besides the plain way.

The plain way makes a sampler with all arguments, sets each epoch, and iterates to the end. To add
a way, add its module here and in `ranks.asking`, and its class to `WAYS`.

Standard library only: the rank side imports this package under any interpreter.
"""

from ddp_invariants.cases.shard_situation import ShardSituation, register
from ddp_invariants.situations.asking.abandoned import Abandoned
from ddp_invariants.situations.asking.after_another import AfterAnother
from ddp_invariants.situations.asking.changed_length import ChangedLength
from ddp_invariants.situations.asking.concatenated import Concatenated
from ddp_invariants.situations.asking.copied import Copied
from ddp_invariants.situations.asking.default_dtype import DefaultDtype
from ddp_invariants.situations.asking.draws_between import DrawsBetween
from ddp_invariants.situations.asking.from_the_environment import FromTheEnvironment
from ddp_invariants.situations.asking.from_the_group import FromTheGroup
from ddp_invariants.situations.asking.in_a_group import InAGroup
from ddp_invariants.situations.asking.interleaved import Interleaved
from ddp_invariants.situations.asking.kept import Kept
from ddp_invariants.situations.asking.larger_job import LargerJob
from ddp_invariants.situations.asking.left_before import LeftBefore
from ddp_invariants.situations.asking.left_out import LeftOut
from ddp_invariants.situations.asking.len_between import LenBetween
from ddp_invariants.situations.asking.one_by_one import OneByOne
from ddp_invariants.situations.asking.positional import Positional
from ddp_invariants.situations.asking.rolled_back import RolledBack
from ddp_invariants.situations.asking.saved_again import SavedAgain
from ddp_invariants.situations.asking.set_again import SetAgain
from ddp_invariants.situations.asking.set_meanwhile import SetMeanwhile
from ddp_invariants.situations.asking.subset import Subset
from ddp_invariants.situations.asking.unset_epoch import UnsetEpoch
from ddp_invariants.situations.asking.vast import Vast

__all__ = [
    "WAYS",
    "Abandoned",
    "AfterAnother",
    "ChangedLength",
    "Concatenated",
    "Copied",
    "DefaultDtype",
    "DrawsBetween",
    "FromTheEnvironment",
    "FromTheGroup",
    "InAGroup",
    "Interleaved",
    "Kept",
    "LargerJob",
    "LeftBefore",
    "LeftOut",
    "LenBetween",
    "OneByOne",
    "Positional",
    "RolledBack",
    "SavedAgain",
    "SetAgain",
    "SetMeanwhile",
    "Subset",
    "UnsetEpoch",
    "Vast",
]

WAYS: tuple[type[ShardSituation], ...] = (
    Interleaved,
    Abandoned,
    UnsetEpoch,
    SetAgain,
    LeftOut,
    Positional,
    FromTheGroup,
    LenBetween,
    OneByOne,
    ChangedLength,
    FromTheEnvironment,
    Copied,
    DrawsBetween,
    AfterAnother,
    Kept,
    LeftBefore,
    Subset,
    RolledBack,
    Concatenated,
    DefaultDtype,
    InAGroup,
    LargerJob,
    Vast,
    SetMeanwhile,
    SavedAgain,
)
"""The classes, in the order in which a case lists them."""

register(*WAYS)
