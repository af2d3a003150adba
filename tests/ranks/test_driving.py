"""Implementations of every usual shape are driven without glue; all others get one sentence."""

from dataclasses import replace
from pathlib import Path

import pytest
from probed import Discover

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.probe import discover
from ddp_invariants.discovery.result import Standing
from ddp_invariants.errors import LoadFailure
from ddp_invariants.implementation.declarations import Declarations, declare
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.processes.pool import Pool
from ddp_invariants.ranks.driving.imports import resolve, signature
from ddp_invariants.records.verdict import violation_class
from ddp_invariants.search.strategies import cases_for

CASE = TrainingCase(
    model=Model(2, (Layer("linear", 2), Layer("linear", 1))),
    steps=2,
    accumulation=2,
    bucket_cap=8,
    data=Data(samples=8, batch_size=2),
)

SHAPES_FILE = str(Path(__file__).parents[1] / "helpers" / "shapes.py")


def of(name: str) -> str:
    """Return the full name of a shape."""
    return f"{SHAPES_FILE}:{name}"


SHAPES: dict[str, tuple[Ddp, str]] = {
    "an explicit call by a usual name": (Ddp(of("UsualCall")), "after backward: sync_gradients()"),
    "an engine": (Ddp(of("Engine")), "backward: backward() of the wrapper"),
    "a backward that is no engine's": (Ddp(of("Stage")), "after backward: sync_gradients()"),
    "an explicit call by any name": (
        Ddp(of("Unfinished"), finish="exchange"),
        "after backward: exchange()",
    ),
    "a free function after backward": (
        Ddp(of("Unfinished"), after=of("free_function")),
        "called with 'module' first",
    ),
    "no wrapper, and a free function": (
        Ddp("none", after=of("free_function"), declares={"init": "seed"}),
        "the module itself, unwrapped",
    ),
    "hooked in place": (Ddp(of("in_place")), "called with 'model' first"),
    "lazily, at the first forward": (Ddp(of("Lazy")), "after backward: sync_grads()"),
    "with the optimizer as an argument": (
        Ddp(of("with_optimizer"), declares={"gradients": "hidden"}),
        "also passed: optimizer",
    ),
    "with the optimizer as optim": (
        Ddp(of("with_optim"), declares={"gradients": "hidden"}),
        "also passed: optim",
    ),
    "an optimizer that synchronises": (
        Ddp("none", optimizer=of("SynchronisingSgd")),
        "--opt called with 'params' first",
    ),
    "rank and world size": (Ddp(of("ToldItsRank")), "also passed: rank, world_size"),
    "a bucket capacity in elements": (
        Ddp(of("CapInElements")),
        "bucket capacity in elements as 'bucket_size'",
    ),
    "an argument its user knows": (
        Ddp(of("Flavoured"), (("flavour", "plain"),)),
        "given: flavour='plain'",
    ),
    "gradients in main_grad": (Ddp(of("MainGrad")), "gradients: in .main_grad"),
    "an attribute instead of no_sync": (Ddp(of("Toggled")), "accumulation: no_sync"),
    "a runtime set up first": (
        Ddp(of("NeedsSetUp"), setup=(of("set_up(size=WORLD, rank=RANK)"),)),
        "sync_gradients()",
    ),
    "a process group of its own": (Ddp(of("OwnGroup")), "sync_gradients()"),
    "an adapter": (Ddp(of("Adapter")), "adapter with wrap, after_backward"),
    "a course's module": (
        Ddp(f"course:{SHAPES_FILE}#bucketed"),
        "course functions get_ddp_bucketed",
    ),
}


@pytest.mark.parametrize(("ddp", "words"), SHAPES.values(), ids=SHAPES)
def test_shape_is_driven_without_glue(
    pool: Pool, discovered: Discover, ddp: Ddp, words: str
) -> None:
    """The shape trains and violates no rule, and the report explains how it is driven."""
    discovery = discovered(pool, ddp, Sampler(), 2)
    assert any(words in line for line in discovery.driven), discovery.driven
    scope = discovery.scope(2)
    evidence = pool.train(scope.fit(CASE), ddp)
    assert evidence.incident is None
    assert [rank.raised for rank in evidence.ranks] == [None, None]
    findings = judge(evidence, scope.declared)
    assert {
        rule: f.failure for rule, f in findings.items() if f.failure and not scope.excluded(rule)
    } == {}
    assert findings["PARAM-3"].compared


HEAD = f"""
import sys
sys.path.insert(0, {str(Path(SHAPES_FILE).parent)!r})
from shapes import Unfinished, average
"""
WRAP, STEP = (
    "def wrap(self, module, context): ...",
    "def train_step(self, parameters, inputs, targets, context): ...",
)
PLAIN = "class DDP(Unfinished): ..."
UNUSABLE: dict[str, tuple[str, Ddp, str]] = {
    "a method misspelt": (
        f"class DDP:\n    {WRAP}\n    def after_backwards(self, wrapped, optimizer): ...",
        Ddp(),
        "did you mean\n    def after_backward(self, wrapped, optimizer): ...",
    ),
    "a method that takes too little": (
        "class DDP:\n    def wrap(self, module): ...",
        Ddp(),
        (
            "cannot be called with the arguments that it will get (too many positional arguments); expected\n"
            "    def wrap(self, module, context): ..."
        ),
    ),
    "a whole step without a model": (
        f"class DDP:\n    {STEP}",
        Ddp(),
        'must declare the model it computes, such as declares = {"stack"',
    ),
    "a declaration misspelt": (
        "class DDP(Unfinished):\n    declares = {'inti': 'seed'}",
        Ddp(),
        "'inti' is no declaration (did you mean 'init'?)",
    ),
    "no capability": (
        "class DDP(Unfinished):\n    declares = {'unsupported': ['ties']}",
        Ddp(),
        "unsupported names 'ties', which is no capability (did you mean 'tied'?)",
    ),
    "no argument of that name": (
        PLAIN,
        Ddp(arguments=(("modul", "1"),)),
        "it takes no argument 'modul'; did you mean module?",
    ),
    "a name that is there under another": (
        "class DDPs(Unfinished): ...",
        Ddp(),
        "did you mean 'DDPs'?",
    ),
    "a course kind nobody knows": (
        "",
        Ddp("course:{path}#bucket"),
        "KIND one of individual, bucketed, ddp, fsdp, sharded",
    ),
    "a course without that function": (
        "def get_ddp(module): ...",
        Ddp("course:{path}#bucketed"),
        "has no 'get_ddp_bucketed'; it has the functions of #ddp",
    ),
    "a setup call that is none": (
        PLAIN,
        Ddp(setup=("{path}:average(open('x'))",)),
        "arguments must be given by name",
    ),
    "no wrapper": (
        "def DDP(module): return 3",
        Ddp(),
        "{path}:DDP returned an object that cannot be called like a model",
    ),
    "a model and no optimizer": (
        "def DDP(module): return module, 'cpu'",
        Ddp(),
        "wrapping returned a str without step after the model, expected an optimizer",
    ),
    "an optimizer without a rate": (
        "import torch\nclass Fixed(torch.optim.SGD):\n    def __init__(self, params): super().__init__(params, 1.0)",
        Ddp("none", optimizer="{path}:Fixed"),
        "it takes no lr by a usual name (lr, learning_rate)",
    ),
    "one that needs CUDA": (
        "class DDP(Unfinished):\n    def __init__(self, module): super().__init__(module.cuda())",
        Ddp(),
        "it needs CUDA",
    ),
    "a finish call it has not": (
        PLAIN,
        Ddp(finish="forwards"),
        "has no such method; did you mean 'forward'?",
    ),
}


def put(path: Path, source: str, ddp: Ddp) -> Ddp:
    """Write an implementation to a file, and return a Ddp that names it there."""
    path.write_text(HEAD + source + "\n")
    name = f"{path}:DDP" if ddp.name == "reference" else ddp.name.format(path=path)
    return replace(
        ddp,
        name=name,
        setup=tuple(call.format(path=path) for call in ddp.setup),
        optimizer=ddp.optimizer.format(path=path),
    )


@pytest.mark.parametrize(("source", "ddp", "sentence"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_no_implementation_gets_one_sentence(
    pool: Pool, tmp_path: Path, source: str, ddp: Ddp, sentence: str
) -> None:
    """The sentence names the cause and the remedy, before any property runs."""
    path = tmp_path / "mine.py"
    with pytest.raises(LoadFailure) as raised:
        discover(pool, put(path, source, ddp), Sampler(), 2)
    assert sentence.replace("{path}", str(path)) in str(raised.value)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("module", "the one that wrapping was given"),
        ("None", "the one that wrapping was given"),
        ("module, optimizer", "the one that wrapping returned"),
    ],
)
def test_the_origin_of_the_optimizer_is_told(
    pool: Pool, tmp_path: Path, returned: str, words: str
) -> None:
    """A function that takes the optimizer need not return it."""
    path = tmp_path / "mine.py"
    path.write_text(f"def wrap(module, optimizer):\n    return {returned}\n")
    evidence = pool.train(CASE, Ddp(f"{path}:wrap"))
    assert [rank.raised for rank in evidence.ranks] == [None, None]
    assert {rank.driven["optimizer"] for rank in evidence.ranks} == {words}


def test_a_name_in_another_file_is_suggested(pool: Pool, tmp_path: Path) -> None:
    """If another file in the same folder defines the name, the message names that file."""
    (tmp_path / "mine.py").write_text("x = 1")
    (tmp_path / "other.py").write_text("class DDP: ...")
    with pytest.raises(LoadFailure, match=r"other\.py:DDP exists"):
        pool.describe(Ddp(f"{tmp_path}/mine.py:DDP"))


@pytest.mark.parametrize("declared", [False, True])
def test_capabilities_are_found(pool: Pool, tmp_path: Path, *, declared: bool) -> None:
    """A refused capability is not drawn; a wrong one is, unless declared unsupported."""
    path = tmp_path / "mine.py"
    path.write_text(
        HEAD
        + f"""
class DDP(Unfinished):
    declares = {{"unsupported": {["frozen"] if declared else []}}}
    def __init__(self, module):
        if any(p.dim() == 0 for p in module.parameters()):
            raise ValueError("no scalars")
        super().__init__(module)
        self.frozen = [p for p in module.parameters() if not p.requires_grad]
    def sync_gradients(self):
        if not self.frozen:
            average(self.parameters())
"""
    )
    discovery = discover(pool, Ddp(f"{path}:DDP"), Sampler(), 4)
    by_name = {probed.capability: probed for probed in discovery.ddp_probes}
    assert by_name["scalar"].standing is Standing.REFUSED
    assert "no scalars" in by_name["scalar"].words
    assert by_name["frozen"].standing is Standing.WRONG
    assert by_name["tied"].standing is Standing.RIGHT
    assert by_name["no_sync"].standing is Standing.ABSENT
    scope = discovery.scope(4)
    assert not scope.has("scalar")
    assert scope.has("frozen") != declared
    pinned, _ = discovery.pinned()
    assert {"scalar", "frozen"} <= set(pinned.unsupported)
    assert "tied" in pinned.supports


def test_what_is_claimed_and_refused_is_an_error(pool: Pool, tmp_path: Path) -> None:
    """A claim that is refused or not offered is an error."""
    path = tmp_path / "mine.py"
    path.write_text(
        HEAD + "class DDP(Unfinished):\n    declares = {'supports': ['no_sync', 'tied']}\n"
        "    def sync_gradients(self): average(self.parameters())"
    )
    discovery = discover(pool, Ddp(f"{path}:DDP"), Sampler(), 2)
    message = (
        "it claims 'no_sync' (gradients can be accumulated without communication), "
        "which is not offered"
    )
    assert discovery.claims_refused() == [message]


def test_declarations_go_to_toml_and_back() -> None:
    """All declarations survive TOML, and so does the declared shape of a model."""
    import tomllib

    from ddp_invariants.implementation.declarations import to_toml

    declared = declare(
        Declarations,
        {
            "init": "seed",
            "zero": 2,
            "stack": {"layers": 2, "activation": "gelu"},
            "unsupported": ["tied", "adamw"],
        },
    )
    assert declare(Declarations, tomllib.loads(to_toml("ddp", declared))["ddp"]) == declared


SAMPLERS = {
    "a function returning indices": Sampler(of("indices")),
    "a generator over items, by the environment": Sampler(
        of("split"), declares={"padding": "none", "layout": "strided"}
    ),
    "one that asks torch.distributed": Sampler(of("AsksTorch")),
    "one over batches": Sampler(of("Batches")),
    "one over a length, the epoch an argument": Sampler(of("over_a_length")),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_sampler_shape_is_asked_without_glue(make_trial: TrialMaker, sampler: Sampler) -> None:
    """The shards are judged by the sampler's declarations, and violate no rule."""
    trial = make_trial(sampler=sampler, cases=40)
    for rule in ("SHARD-1", "SHARD-3", "SHARD-4", "SHARD-5", "SHARD-6", "SHARD-8"):
        if not trial.scope.excluded(rule):
            trial.certify(rule, cases_for(rule, trial.scope))
    assert all(trial.ledger[rule].seen == 0 for rule in sharding.rules)
    assert trial.scope.has("uneven")


RESUMABLE = "ddp_invariants.faults.resumable"


@pytest.mark.parametrize(
    ("sampler", "standing"),
    [
        (Sampler("reference"), Standing.RIGHT),
        (Sampler("torch"), Standing.ABSENT),
        (Sampler(of("split")), Standing.ABSENT),
        (Sampler(f"{RESUMABLE}:PlaceAlone"), Standing.RIGHT),
        (Sampler(f"{RESUMABLE}:Replays"), Standing.WRONG),
    ],
)
def test_a_state_to_go_on_from_is_found_where_it_is_offered(
    pool: Pool, discovered: Discover, sampler: Sampler, standing: Standing
) -> None:
    """SHARD-9 is judged only if the sampler offers a state to resume from.

    A sampler whose state is wrong is judged, too, unless it declares `resume` unsupported.
    """
    discovery = discovered(pool, Ddp(), sampler, 4)
    assert [
        probed.standing for probed in discovery.sampler_probes if probed.capability == "resume"
    ] == [standing]
    scope = discovery.scope(4)
    assert scope.excluded("SHARD-9") == (
        "" if scope.has("resume") else "cannot continue from a saved state"
    )
    assert scope.has("resume") == (standing is not Standing.ABSENT)
    declared = discovered(
        pool, Ddp(), Sampler(sampler.name, declares={"unsupported": ("resume",)}), 4
    )
    assert declared.scope(4).excluded("SHARD-9")


def test_whether_a_state_holds_the_epoch_is_declared(make_trial: TrialMaker) -> None:
    """A sampler declares if its saved state holds the epoch.

    If the state lacks the epoch, set_epoch is called before the state is loaded. If such a sampler
    claims that its state holds the epoch, SHARD-9 reports that the saved epoch is lost.
    """
    trial = make_trial(sampler=Sampler(f"{RESUMABLE}:PlaceAlone"))
    trial.certify("SHARD-9", cases_for("SHARD-9", trial.scope))
    trial = make_trial(sampler=Sampler(f"{RESUMABLE}:PlaceAlone", declares={"saves": "epoch"}))
    with pytest.raises(violation_class("SHARD-9"), match="the saved epoch is lost"):
        trial.certify("SHARD-9", cases_for("SHARD-9", trial.scope))


def test_arguments_that_a_constructor_hands_on_are_found(tmp_path: Path) -> None:
    """Named arguments reach the base by `**options`; others may be lost on the way."""
    path = tmp_path / "handed.py"
    path.write_text(HANDED)
    names = {
        name: [*signature(resolve(f"{path}:{name}", "ddp"), "--ddp")]
        for name in ("HandsOn", "Keeps")
    }
    assert names["HandsOn"] == [
        "module",
        "extra",
        "process_group",
        "bucket_cap_mb",
        "broadcast_buffers",
        "options",
    ]
    assert names["Keeps"] == ["module", "options"]


def test_a_constructor_hands_on_no_argument_that_it_gives_itself(tmp_path: Path) -> None:
    """The base takes an argument by name or by place, so a second value would be an error."""
    path = tmp_path / "handed.py"
    path.write_text(HANDED)
    names = {
        name: {*signature(resolve(f"{path}:{name}", "sampler"), "--sampler")}
        for name in ("InOrder", "OneGroup", "Placed", "Unpacked", "Changed")
    }
    assert names["InOrder"] == {"step", "dataset", "num_replicas", "rank", "seed", "drop_last", "o"}
    assert names["OneGroup"] == {"dataset", "group", "groups", "shuffle", "seed", "drop_last", "o"}
    assert names["Placed"] == {"dataset", "shuffle", "seed", "drop_last", "o"}
    assert "dataset" not in names["Unpacked"] | names["Changed"]
    assert {"rank", "seed"} <= names["Unpacked"] & names["Changed"]


HANDED = """
from torch.utils.data import DistributedSampler

class InOrder(DistributedSampler):
    def __init__(self, step=1, **o):
        super().__init__(shuffle=False, **o)

class OneGroup(DistributedSampler):
    def __init__(self, dataset, group, groups, **o):
        super().__init__(dataset, rank=group, num_replicas=groups, **o)

class Placed(DistributedSampler):
    def __init__(self, dataset, **o):
        DistributedSampler.__init__(self, dataset, 2, 1, **o)

class Unpacked(DistributedSampler):
    def __init__(self, *places, step=1, **o):
        super().__init__(*places, **o)

class Changed(DistributedSampler):
    def __init__(self, step=1, **o):
        o["dataset"] = range(step)
        super().__init__(**o)

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

class HandsOn(Reference):
    def __init__(self, module, extra=3, **options):
        super().__init__(module, **options)

class Keeps(Reference):
    def __init__(self, module, **options):
        super().__init__(module)
        self.options = options
"""
