"""The explanation of a rule, collected from its module, the catalogue and the properties."""

import ast
import difflib
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddp_invariants.discovery.scope import Scope, unclaimed_where
from ddp_invariants.errors import UnknownRuleError
from ddp_invariants.implementation.declarations import CAPABILITIES
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.invariants.shard import sharding
from ddp_invariants.invariants.view import training
from ddp_invariants.processes.backends import Backend
from ddp_invariants.proof.catalogue import planted

_PACKAGE = Path(__file__).parents[1]
PROPERTIES = _PACKAGE / "properties"
"""The packaged properties: in the checkout a link to the folder beside the package."""

_LI = "Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2"
_SOURCES = {
    "INIT": f"{_LI}: all processes start from the same model state",
    "INIT-4": "what some implementations do instead",
    "SHARD": "the documentation of torch.utils.data.DistributedSampler",
    "SHARD-9": "what a resumed training needs; torch's own sampler saves no state",
    "SHARD-10": "the documentation of torch.utils.data.IterableDataset: each worker gets a copy "
    "of the dataset",
    "LOSS": "the definition of data parallelism: each rank computes on its own batch, with the "
    "model as it is",
    "GRAD": f"{_LI}: all processes consume the same gradients, the average of their own",
    "GRAD-3": "the definition of data parallelism; bounds after Higham 2002, Accuracy and "
    "Stability of Numerical Algorithms, "
    "chapters 3 and 4",
    "GRAD-7": "IEEE 754: what is not finite stays so in a sum",
    "GRAD-8": f"{_LI}: gradient accumulation, no_sync",
    "GRAD-9": f"{_LI}: globally unused parameters",
    "GRAD-11": "the documentation of torch.distributed.algorithms.Join: by how many a sum is "
    "divided is the caller's choice",
    "PARAM-6": "the documentation of torch.amp.GradScaler: a step whose gradients overflow is "
    "skipped, and the scale reduced",
    "PARAM": "what follows from equal states and equal gradients with equal optimizers",
    "BUF": "the documentation of torch.nn.parallel.DistributedDataParallel: broadcast_buffers",
    "COMM": "the documentation of torch.distributed: collectives match across ranks, and "
    "results are there after wait()",
    "COMM-4": f"{_LI}: gradient bucketing",
    "COMM-5": f"{_LI}: overlapping computation with communication",
    "COMM-6": "Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of "
    "workstations",
    "LIVE": "what anybody expects of a program: it ends, and what was caught does no harm",
    "STATE": "the documentation of torch.nn.Module and torch.optim.Optimizer: state_dict and "
    "load_state_dict",
    "MEM": "Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054: the stages' shares",
    "RNG": "the notes on reproducibility and torch.manual_seed in torch's documentation: "
    "whoever seeds ranks "
    "differently means their random numbers to differ",
    "GPU": "the notes on CUDA semantics in torch's documentation: what streams compute is in no "
    "order that nobody asked for",
}
"""The source of a requirement: of an invariant's rules, and of rules with another source."""


@dataclass(frozen=True)
class Caught:
    """A planted fault that a rule must notice: its name and its error."""

    name: str
    what: str


@dataclass(frozen=True)
class Explained:
    """A rule with its explanation.

    Attributes:
        id: Such as `GRAD-2`.
        requirement: The fact that must hold.
        level: `core`; `capability`: only if one is offered; `declared`: only if it is declared;
            `observed`: never judged.
        source: The origin of the requirement.
        judged: How it is judged.
        needs: Situations without which a run has proved nothing.
        not_claimed: Reasons for which it may not apply to the implementation.
        faults: Planted faults that it must catch.
        code: File and line of its judge, relative to the package's folder.
        property: The property that tests it, likewise.
    """

    id: str
    requirement: str
    level: str
    source: str
    judged: str
    needs: tuple[str, ...]
    not_claimed: tuple[str, ...]
    faults: tuple[Caught, ...]
    code: str
    property: str


def explained(name: str) -> Explained:
    """Explain a rule by its id in any spelling: GRAD-2, grad-2, grad2.

    Raises:
        UnknownRuleError: There is no such rule.
    """
    wanted = _plain(name)
    rule = next(
        (candidate for candidate in ALL_RULES.values() if _plain(candidate.id) == wanted), None
    )
    if rule is None:
        known = {_plain(identifier): identifier for identifier in ALL_RULES}
        of_invariant = [
            candidate
            for candidate in ALL_RULES
            if candidate.split("-")[0] == wanted.rstrip("0123456789").upper()
        ]
        close = of_invariant or [
            known[candidate] for candidate in difflib.get_close_matches(wanted, known, 3)
        ]
        instead = (
            f"did you mean {' or '.join(close)}?" if close else "`ddp-invariants rules` lists them"
        )
        raise UnknownRuleError(f"{name}: no rule is called so; {instead}")
    judges = [
        rule_set[rule.id].judge
        for rule_set in (training.rules, sharding.rules)
        if rule.id in rule_set
    ]
    judge = inspect.unwrap(judges[0])
    lines, file = inspect.getsourcelines(judge)[1], Path(inspect.getfile(judge))
    return Explained(
        rule.id,
        rule.requirement,
        _level(rule.id),
        _SOURCES.get(rule.id, _SOURCES.get(rule.id.split("-")[0], "")),
        "\n\n".join(inspect.getdoc(candidate) or "" for candidate in judges),
        rule.needs,
        tuple(unclaimed_where(rule.id)),
        tuple(
            Caught(candidate.name, candidate.what)
            for candidate in planted()
            if rule.id in (candidate.rule, candidate.other_rule)
        ),
        f"{file.relative_to(_PACKAGE)}:{lines}",
        _properties().get(_plain(rule.id), ""),
    )


def _plain(name: str) -> str:
    return name.replace("-", "").lower()


def _level(rule: str) -> str:
    if rule == "COMM-6":
        return "observed"
    if Scope(backend=Backend("gloo-cuda", "cuda")).excluded(rule):
        return "declared"
    return "capability" if Scope(without=frozenset(CAPABILITIES)).excluded(rule) else "core"


@cache
def _properties() -> dict[str, str]:
    """Find the file and line of each rule's property by reading the files."""
    places = {}
    for path in sorted(PROPERTIES.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                places[node.name.split("_")[1]] = f"properties/{path.name}:{node.lineno}"
    return places
