"""Cases survive JSON, and a bad case file gives one sentence that names the field."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import (
    Case,
    ShardCase,
    TrainingCase,
    Values,
    case_id,
    describe,
    to_json,
)
from ddp_invariants.cases.extremes import EXTREMES
from ddp_invariants.cases.kinds import KINDS
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer, Poison, Unused
from ddp_invariants.cases.shrink import simpler
from ddp_invariants.discovery.capabilities import TRAINING
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.errors import CaseError
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants import ALL_RULES
from ddp_invariants.records import reading
from ddp_invariants.search.strategies import cases_for, shard_cases, training_cases
from ddp_invariants.situations import from_plain
from ddp_invariants.situations.crossed import Crossed
from ddp_invariants.situations.no_sync import NoSyncStyle
from ddp_invariants.situations.passes import PassOrder
from ddp_invariants.situations.poison import Poisoned
from ddp_invariants.situations.unused import UnusedLayers

NARROWING = Model(2, (Layer("linear", 2), Layer("linear", 1)))
SIMPLEST = TrainingCase(model=Model(1, (Layer("linear"),)))
ANY = (
    training_cases(Scope(), poisoned=True)
    | training_cases(Scope())
    | training_cases(Scope(), unused=True, crossed=True)
    | training_cases(Scope(), accumulated=True)
    | training_cases(Scope(), odd=True)
    | training_cases(Scope(), named=True)
    | shard_cases(Scope())
    | shard_cases(Scope(), saved=True)
)


@given(ANY)
def test_a_case_survives_json_both_ways(case: Case) -> None:
    """A case survives the fast conversion that is used between our own processes."""
    assert from_plain(json.loads(to_json(case))) == case
    assert describe(case)


@given(case=ANY)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # all examples may share the folder
def test_a_case_survives_a_file(tmp_path: Path, case: Case) -> None:
    """A case survives the strict conversion that is used for files from users."""
    path = tmp_path / "case.json"
    path.write_text(to_json(case))
    assert reading.read(path) == case


def test_a_file_from_before_states_were_saved_is_read(tmp_path: Path) -> None:
    """A sampler case without the field `saved_after` saves no state."""
    case = ShardCase(data=Data(samples=3))
    older = {
        name: value for name, value in json.loads(to_json(case)).items() if name != "saved_after"
    }
    path = tmp_path / "case.json"
    path.write_text(json.dumps(older))
    assert reading.read(path) == case


@given(training_cases(Scope()))
def test_batches_are_equal_in_size_on_all_ranks_and_at_every_step(case: TrainingCase) -> None:
    """The harness makes equal batches by itself, without the sampler under test."""
    dealt = numbers.batches(case)
    assert len(dealt) == case.steps * case.accumulation
    for ranks in dealt:
        assert len(ranks) == case.world_size
        assert len({len(indices) for indices in ranks}) == 1
        assert all(0 < len(indices) <= case.data.batch_size for indices in ranks)
        assert all(0 <= index < case.data.samples for indices in ranks for index in indices)


def test_a_file_written_before_a_field_was_is_read(tmp_path: Path) -> None:
    """A field that an old file lacks has its default."""
    plain = json.loads(to_json(SIMPLEST))
    for name in ("situations", "bucket_cap", "rounds"):
        del plain[name]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(plain))
    assert reading.read(path) == SIMPLEST


def test_a_file_from_before_layers_had_other_names_is_read(tmp_path: Path) -> None:
    """The layers of a model without the field `naming` are numbered, in both conversions."""
    plain = json.loads(to_json(SIMPLEST))
    del plain["model"]["naming"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(plain))
    assert reading.read(path) == from_plain(plain) == SIMPLEST


def test_what_is_passed_by_is_said_by_rank_step_and_micro_step() -> None:
    """None stands for every rank, step or micro-step; a layer is used if one micro-step uses it."""
    case = TrainingCase(
        Model(2, (Layer("linear", 2),) * 3),
        accumulation=2,
        situations=(UnusedLayers((Unused(1, micro_step=1), Unused(2))),),
    )
    assert [sorted(case.passed_by(0, 0, micro_step)) for micro_step in (0, 1)] == [[2], [1, 2]]
    assert case.never_used(0, 0) == {2}


def test_what_is_passed_by_is_said_by_rank_and_step() -> None:
    """None stands for every rank or step; removing a layer keeps the others' unused entries."""
    case = TrainingCase(
        Model(2, (Layer("linear", 2),) * 3),
        steps=2,
        situations=(UnusedLayers((Unused(1, step=1), Unused(2, rank=0))),),
    )
    assert [[sorted(case.passed_by(rank, step, 0)) for rank in (0, 1)] for step in (0, 1)] == [
        [[2], []],
        [[1, 2], [1]],
    ]
    assert case.model.used(frozenset({1})) == {"layers.0.weight", "layers.2.weight"}
    assert any(
        one
        == replace(
            case,
            model=Model(2, (Layer("linear", 2),) * 2),
            situations=(UnusedLayers((Unused(1, rank=0),)),),
        )
        for one in simpler(case)
    )


def test_numbers_are_the_same_for_ever() -> None:
    """A stored case means the same bits in every version of this package, Python and numpy."""
    assert numbers.words(0, "samples", 3).tolist() == STORED_WORDS
    assert numbers.numbers(SIMPLEST, "samples", 4).tolist() == STORED_NUMBERS


STORED_WORDS = [17252263512552666123, 2258372705259387672, 17772527995807630523]
STORED_NUMBERS = [2.0, -2.0, 2.0, -2.0]


def test_ranks_differ_in_every_element_before_wrapping() -> None:
    """Ranks differ in every element before wrapping, so that a wrong initialisation shows."""
    values = [numbers.parameters(SIMPLEST, rank, 16) for rank in range(4)]
    for rank in range(4):
        for other_rank in range(rank):
            assert (values[rank] != values[other_rank]).all()


def test_case_ids_tell_cases_and_implementations_apart() -> None:
    """A case id is six digits of a digest over the case and the implementation."""
    assert case_id(SIMPLEST, "a") != case_id(SIMPLEST, "b")
    assert case_id(SIMPLEST) == case_id(from_plain(json.loads(to_json(SIMPLEST))))


BAD: list[tuple[str, str]] = [
    ("", "not a JSON object"),
    ("[1]", "not a JSON object"),
    ("{nonsense", "not a JSON object"),
    ("{}", "kind is None, expected 'training', 'shard' or 'violation'"),
    ('{"kind": "shard", "world_size": "two"}', "world_size: Input should be a valid integer"),
    ('{"kind": "shard", "world_size": 0}', "world_size is 0, expected an integer from 1 to 4096"),
    ('{"kind": "shard", "ranks": 2}', "ranks: Unexpected keyword argument"),
    (
        '{"kind": "shard", "data": {"samples": -1}}',
        "data: samples is -1, expected an integer from 0 to 1000000",
    ),
    ('{"kind": "training"}', "model: Field required"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_case_file_gets_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    """The message names the file, the field, its value, and the values allowed."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(CaseError) as raised:
        reading.read(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_nested_field_is_named_by_its_path(tmp_path: Path) -> None:
    """The message names the layer and its attribute, not the whole model."""
    plain = json.loads(to_json(SIMPLEST))
    plain["model"]["layers"][0]["kind"] = "recurrence"
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(
        CaseError, match=r"model\.layers\.0\.kind: Input should be 'linear', 'scale'"
    ):
        reading.read(path)


def test_missing_and_binary_files_get_one_sentence(tmp_path: Path) -> None:
    """Neither a missing nor a binary file ends in a traceback."""
    with pytest.raises(CaseError, match="No such file"):
        reading.read(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(CaseError, match="not a text file"):
        reading.read(tmp_path / "binary.json")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainingCase(model=SIMPLEST.model, world_size=0), "world_size is 0"),
        (
            lambda: TrainingCase(model=SIMPLEST.model, data=Data(samples=1, drop_last=True)),
            "data.samples is 1, expected at",
        ),
        (
            lambda: TrainingCase(model=SIMPLEST.model, situations=(Poisoned(Poison(2, 0)),)),
            "poison.rank is 2, expected an integer from 0 to 1",
        ),
        (lambda: TrainingCase(model=SIMPLEST.model, bucket_cap=0), "bucket_cap is 0"),
        (lambda: Model(1, ()), "at least one layer"),
        (lambda: Model(1, (Layer("linear", frozen=True),)), "at least one trainable parameter"),
        (lambda: Model(2, (Layer("linear", layout="channels_last"),)), "not divisible by 4"),
        (lambda: Model(2, (Layer("linear", 2), Layer("embedding"))), "it must be the first layer"),
        (
            lambda: Model(2, (Layer("convolution"),)),
            "another kind, since the input width 2 is not divisible by 4",
        ),
        (lambda: Model(3, (Layer("attention"),)), "the input width 3 is odd"),
        (lambda: Layer("dropout", checkpoint="plain"), "'none' for dropout"),
        (
            lambda: Model(2, (Layer("linear", 2), Layer("dropout", activation="relu"))),
            "a dropout layer passes its input on",
        ),
        (lambda: Model(2, (Layer("dropout"),)), "at least one trainable parameter"),
        (lambda: Layer("norm", dtype="bfloat16"), "'float32' or 'float64' for norm"),
        (lambda: Layer("norm", dtype="float16"), "in float16 its error has no useful bound"),
        (
            lambda: Model(2, (Layer("batch_norm"),)),
            "another kind, since the input width 2 is not divisible by 4",
        ),
        (lambda: Layer("batch_norm", dtype="bfloat16"), "'float32' or 'float64' for batch_norm"),
        (
            lambda: Layer("batch_norm", dtype="complex64"),
            "dtype is 'complex64', expected a real dtype for batch_norm",
        ),
        (
            lambda: Layer("batch_norm", checkpoint="plain"),
            "'none': a batch_norm layer would update its buffers twice",
        ),
        (
            lambda: replace(
                SIMPLEST, model=Model(4, (Layer("batch_norm"),)), accumulation=2
            ).with_situation(PassOrder("joint")),
            "passes is 'joint', expected another order if a layer is a batch_norm",
        ),
        (
            lambda: Layer("norm", dtype="complex64"),
            "dtype is 'complex64', expected a real dtype for norm",
        ),
        (
            lambda: replace(
                SIMPLEST, model=Model(1, (Layer("linear", dtype="complex64"),))
            ).with_situation(Poisoned(Poison(0, 0))),
            "null if a layer is complex",
        ),
        (
            lambda: replace(
                SIMPLEST,
                model=Model(1, (Layer("scale", dtype="complex64"),)),
                optimizer=Optimizer(kernels="fused"),
            ),
            r"optimizer\.kernels is 'fused', expected other",
        ),
        (lambda: Layer("linear", sparse=True), "sparse is True, expected false"),
        (
            lambda: Optimizer(nesterov=True),
            "nesterov is True, expected false without SGD's momentum",
        ),
        (
            lambda: Optimizer(amsgrad=True),
            "kind is 'sgd', expected adam or adamw with amsgrad",
        ),
        (
            lambda: Optimizer("adam", beta_2=1.0),
            r"beta_2 is 1.0, expected a number in \[0, 1\)",
        ),
        (
            lambda: replace(
                SIMPLEST,
                optimizer=Optimizer(kernels="fused"),
                model=Model(2, (Layer("linear", 2, layout="strided"),)),
            ),
            r"optimizer\.kernels is 'fused', expected other",
        ),
        (
            lambda: replace(
                SIMPLEST,
                optimizer=Optimizer(momentum=0.5),
                model=Model(1, (Layer("embedding", sparse=True),)),
            ),
            "plain SGD if a gradient is sparse",
        ),
        (lambda: Model(1, (Layer("linear"), Layer("linear", tied=1))), r"layers\[1\].tied is 1"),
        (lambda: Model(1, (Layer("linear", 2), Layer("linear", 2, tied=0))), "the same shape"),
        (lambda: Model(1, (Layer("embedding"), Layer("linear", 2, tied=0))), "the same shape"),
        (
            lambda: Model(1, (Layer("embedding", sparse=True), Layer("linear", 4, tied=0))),
            "an embedding whose gradient is dense",
        ),
        (
            lambda: TrainingCase(model=NARROWING, situations=(UnusedLayers((Unused(1),)),)),
            r"unused\[0\].layer is 1, expected the index of a layer with",
        ),
        (
            lambda: TrainingCase(model=NARROWING, situations=(UnusedLayers((Unused(0, 2),)),)),
            r"unused\[0\].rank is 2, expected an integer from 0 to 1",
        ),
        (
            lambda: TrainingCase(
                model=NARROWING, situations=(UnusedLayers((Unused(0, micro_step=1),)),)
            ),
            r"unused\[0\].micro_step is 1, expected an",
        ),
        (
            lambda: TrainingCase(model=SIMPLEST.model, situations=(UnusedLayers((Unused(0),)),)),
            "so that a rank trains a parameter with elements at",
        ),
        (
            lambda: TrainingCase(model=SIMPLEST.model, situations=(NoSyncStyle("nested"),)),
            "no_sync is 'nested', expected 'plain' if",
        ),
        (
            lambda: TrainingCase(model=SIMPLEST.model, situations=(Crossed(2),)),
            "crossed is 2, expected an integer from 0 to 1",
        ),
        (lambda: ShardCase(epochs=()), "at least one epoch"),
        (lambda: ShardCase(saved_after=-1), "null or batches from 0"),
    ],
)
def test_a_case_that_cannot_be_run_is_refused_where_it_is_made(make: object, message: str) -> None:
    """The message names the field, its value, and the values allowed."""
    assert callable(make)
    with pytest.raises(CaseError, match=message):
        make()


@settings(deadline=None)
@given(ANY)
def test_what_is_simpler_can_be_run_and_is_another_case(case: Case) -> None:
    """Every simplification is a valid case and differs from its origin; repeated steps end."""
    for _ in range(200):
        steps = list(simpler(case))
        assert case not in steps
        for step in steps:
            assert from_plain(json.loads(to_json(step))) == step
        if not steps:
            return
        case = steps[0]
    pytest.fail(f"simplification does not end: {describe(case)}")


@given(
    st.sampled_from(sorted(rule for rule in ALL_RULES if not rule.startswith("SHARD"))).flatmap(
        lambda rule: cases_for(rule, Scope())
    ),
    st.frozensets(st.sampled_from(sorted(TRAINING)), max_size=6)
    | st.frozensets(st.sampled_from(("sgd", "adam", "adamw", "momentum", "nesterov"))),
)
def test_no_case_asks_for_what_is_not_taken(case: TrainingCase, without: frozenset[str]) -> None:
    """A case fitted to any set of missing capabilities needs none of them.

    The replacement of a capability needs none of them, too.
    """
    assume(not without >= {"sgd", "adamw", "adam"})  # At least one optimizer must remain.
    assert [
        name for name in without if TRAINING[name].present(Scope(without=without).fit(case))
    ] == []


@given(st.sampled_from(("all", "owner", "hidden")), st.sampled_from(sorted(ALL_RULES)), st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_every_rule_that_applies_has_cases(
    gradients: Literal["all", "owner", "hidden"], rule: str, data: st.DataObject
) -> None:
    """Cases can be drawn for every rule that a declaration does not exclude.

    Nothing draws for an excluded rule. For GRAD-11 and hidden gradients there is no valid case.
    """
    scope = Scope(declared=Declarations(gradients=gradients))
    assume(not scope.excluded(rule))
    assert data.draw(cases_for(rule, scope))


def test_faint_numbers_are_fractions_zeros_subnormal_and_tiny_numbers() -> None:
    """Zeros have both signs, and float32 holds every number exactly."""
    drawn = numbers.numbers(replace(SIMPLEST, values="faint"), "samples", 400)
    assert np.array_equal(drawn.astype(np.float32).astype(np.float64), drawn)
    zeros, least = drawn[drawn == 0], float(np.finfo(np.float32).tiny)
    assert {True, False} == set(np.signbit(zeros).tolist())
    sizes = np.abs(drawn[drawn != 0])
    subnormal, tiny, plain = sizes < least, (least < sizes) & (sizes < 1e-29), sizes > 2**-13
    assert (subnormal.sum() + tiny.sum() + plain.sum()) == len(sizes)
    assert min(len(zeros), subnormal.sum(), tiny.sum(), plain.sum()) > 50


def test_scarce_numbers_are_mostly_zeros_in_samples_alone() -> None:
    """Parameters have no zeros, so that gradients are mostly zeros but not always."""
    case = replace(SIMPLEST, values="scarce")
    zeros = numbers.numbers(case, "samples", 400) == 0
    assert 320 < zeros.sum() < 400
    assert numbers.parameters(case, 0, 400).all()


def test_no_gradient_is_left_in_place_by_kernels_that_overwrite_it() -> None:
    """Gradients that a step overwrites are no sums of local gradients in the next step."""
    nesterov = Optimizer(momentum=0.5, nesterov=True, kernels="foreach")
    with pytest.raises(CaseError, match="torch writes the step"):
        replace(SIMPLEST, optimizer=nesterov, zero_grad="never")
    with pytest.raises(CaseError, match="torch writes the step"):
        replace(SIMPLEST, optimizer=replace(nesterov, kernels="default"), zero_grad="never")
    replace(SIMPLEST, optimizer=replace(nesterov, kernels="fused"), zero_grad="never")
    replace(SIMPLEST, optimizer=nesterov)


@pytest.mark.parametrize("values", ["integer", "real"])
def test_few_formats_hold_the_numbers_of_an_extremes_layer(values: Values) -> None:
    """Large integers change in float64 or float32, and floats change in narrower formats."""
    drawn = numbers.numbers(replace(SIMPLEST, values=values), "samples", 3)
    kept = {name: make(drawn) for name, make in EXTREMES.items()}
    dtypes = KINDS["extremes"].buffer_dtypes
    assert {name: str(value.dtype) for name, value in kept.items()} == dtypes
    assert [int(n) for n in kept["total"].astype(np.float64)] != kept["total"].tolist()
    assert kept["steps"].astype(np.float32).astype(np.float64).tolist() != kept["steps"].tolist()
    for name, narrow in (("edges", np.float16), ("far", np.float32)):
        zero, small, large = kept[name]
        with np.errstate(over="ignore"):
            assert np.isinf(large.astype(narrow))
        assert zero == 0
        assert 0 < abs(small) < np.finfo(kept[name].dtype).tiny


@pytest.mark.parametrize("hash_seed", ["1", "2", "3"])
def test_what_stands_in_for_an_optimizer_is_the_same_under_every_hash_seed(hash_seed: str) -> None:
    """A set of capabilities has no order: Adam never becomes AdamW if neither is supported."""
    program = (
        "from dataclasses import replace\n"
        "from ddp_invariants.cases.program import Optimizer\n"
        "from ddp_invariants.situations.capability import BASE\n"
        "from ddp_invariants.discovery.scope import Scope\n"
        "scope = Scope(without=frozenset({'adam', 'adamw', 'momentum', 'nesterov', 'fused'}))\n"
        "print(scope.fit(replace(BASE, optimizer=Optimizer('adam'))).optimizer.kind)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["sgd"]
