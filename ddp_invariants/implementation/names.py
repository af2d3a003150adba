"""The forms a name may have, told without importing what it stands for: controller and ranks say the same of a bad one.

Standard library only: the rank side imports this module under any interpreter.
"""

import difflib
import importlib.metadata
from pathlib import Path

SHORT_NAMES: dict[str, dict[str, str]] = {
    "ddp": {
        "reference": "ddp_invariants.reference.ddp:DistributedDataParallel",
        "torch": "torch.nn.parallel:DistributedDataParallel",
    },
    "sampler": {
        "reference": "ddp_invariants.reference.sampler:DistributedSampler",
        "torch": "torch.utils.data:DistributedSampler",
    },
}

ENTRY_POINTS = "ddp_invariants."
"""A package ships its adapters as entry points of the groups `ddp_invariants.ddp` and `ddp_invariants.sampler`."""


def target_of(name: str, side: str) -> str:
    """A name with short names and entry points resolved."""
    if name in SHORT_NAMES.get(side, {}):
        return SHORT_NAMES[side][name]
    if ":" not in name:
        for entry in importlib.metadata.entry_points(group=ENTRY_POINTS + side):
            if entry.name == name:
                return entry.value
    return name


def misnamed(name: str, side: str) -> str:
    """What is wrong with a name, as far as it can be told from it; empty where nothing is."""
    module, colon, attribute = target_of(name, side).rpartition(":")
    if colon and module and attribute:
        missing = module.endswith(".py") and not Path(module).is_file()
        return f"--{side} {name}: there is no file {module}" if missing else ""
    shipped = [entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINTS + side)]
    known = [*SHORT_NAMES.get(side, {}), *shipped]
    close = difflib.get_close_matches(name, known, 1)
    expected = ", ".join([*known, "package.module:Name or path/to/file.py:Name"])
    return f"--{side} {name}: expected {expected}" + (
        f"; did you mean {close[0]}?" if close else ""
    )
