"""Tests of mutants: the operators, the overlays, and the judge on mutants of the reference."""

import ast
import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_invariants.cli import main
from ddp_invariants.errors import NamingError
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof.catalogue import all_entries
from ddp_invariants.proof.detection import Detection
from ddp_invariants.proof.measure import FaultSearch, search
from ddp_invariants.proof.mutants import judging, overlay
from ddp_invariants.proof.mutants.explanations import explained
from ddp_invariants.proof.mutants.judging import Judged, Target
from ddp_invariants.proof.mutants.operators import OPERATORS, Mutant, mutants, mutated
from ddp_invariants.ranks.driving.files import from_file
from ddp_invariants.reference import sampler
from ddp_invariants.report.mutants import table

SOURCE = '''
class Shared:
    """Words stay."""

    @property
    def part(self, count: int = 3) -> int:
        logger.info(f"{count + 1}")
        assert count > 0
        if count < 2 and not self.empty:
            raise ValueError("no" + "thing")
        try:
            rest = take(self.all[self.first : count], last=True)
        finally:
            self.end()
        return rest if self.short else -count

    def each(self) -> None:
        if self.short:
            for item in range(self.size):
                break
        else:
            self.total += 1
'''
TABLE_FOR_TORCH = "2.13."
"""The version of torch for whose source the table of survivors is written."""
REFERENCE = Target("sampler", "reference")
WRAPPER = Target("ddp", "reference")


def test_the_operators_change_what_they_name() -> None:
    """Messages, logging, assertions, annotations and docstrings are left alone."""
    mutants_of_source = mutants(ast.parse(SOURCE), "Shared")
    assert [f"{each.line}: {each.name.partition(': ')[2]}" for each in mutants_of_source] == [
        "6: decorator: @property -> no decorator",
        "6: constant: 3 -> 4",
        "9: negation: if count < 2 and (not self.empty): -> if not (count < 2 and (not self.empty)):",
        "9: logic: count < 2 and (not self.empty) -> count < 2 or not self.empty",
        "9: comparison: count < 2 -> count >= 2",
        "9: boundary: count < 2 -> count <= 2",
        "9: constant: 2 -> 3",
        "9: negation: not self.empty -> self.empty",
        "10: statement: raise ValueError('no' + 'thing') -> pass",
        "11: finally: try ... finally -> no finally",
        "12: statement: rest = take(self.all[self.first:count], last=True) -> pass",
        "12: argument: take(self.all[self.first:count], last=True) -> take(self.all[self.first:count])",
        "12: boundary: self.first:count -> self.first + 1:count",
        "12: boundary: self.first:count -> self.first:count + 1",
        "12: constant: True -> False",
        "14: statement: self.end() -> pass",
        "15: statement: return rest if self.short else -count -> pass",
        "15: branch: rest if self.short else -count -> -count if self.short else rest",
        "15: arithmetic: -count -> count",
        "18: branch: if self.short: -> branches swapped",
        "19: boundary: range(self.size) -> range(self.size + 1)",
        "20: statement: break -> pass",
        "22: arithmetic: self.total += 1 -> self.total -= 1",
        "22: statement: self.total += 1 -> pass",
        "22: constant: 1 -> 2",
    ]
    assert {each.operator for each in mutants_of_source} == {*OPERATORS}


def test_a_mutant_differs_in_its_change_and_the_marker() -> None:
    """The marker stands before the changed statement."""
    tree = ast.parse("def f(a, b):\n    c = a\n    return c + b\n")
    changed = {each.name: ast.unparse(mutated(tree, each)).splitlines() for each in mutants(tree)}
    assert changed["f: arithmetic: c + b -> c - b"][1:] == [
        "    c = a",
        "    _statement_is_executed('3-4')",
        "    return c - b",
    ]
    assert changed["f: statement: c = a -> pass"][1:4] == [
        "    _statement_is_executed('2-4')",
        "    pass",
        "    return c + b",
    ]


def test_equal_changes_have_names_of_their_own() -> None:
    """A number tells them apart; an unknown class is named."""
    names = [
        each.name for each in mutants(ast.parse("a + 1\na + 1")) if each.operator == "constant"
    ]
    assert names == ["constant: 1 -> 2", "constant: 1 -> 2 #2"]
    with pytest.raises(ValueError, match="it defines no B"):
        mutants(ast.parse("class A: pass"), "B")


def test_an_overlay_leaves_the_original_alone(tmp_path: Path) -> None:
    """The copy is a module of its own, in whose package relative imports are found."""
    original = overlay.locate("sampler", "reference")
    source, module = original.file.read_bytes(), sys.modules[sampler.__name__]
    mutant = next(each for each in judging.chosen(original) if ".order: " in each.name)
    file = tmp_path / "overlay_alone.py"
    overlay.write(original, mutant, file)
    copied = from_file(file)
    assert copied.DistributedSampler is not sampler.DistributedSampler
    assert mutant.statement not in overlay.executed(file)
    assert original.file.read_bytes() == source
    assert sys.modules[sampler.__name__] is module
    package = tmp_path / "relative"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "near.py").write_text("VALUE = 3", encoding="utf-8")
    (package / "wrapper.py").write_text(
        "from .near import VALUE\nfrom . import near\nclass Wrapper:\n    value = VALUE + 1\n",
        encoding="utf-8",
    )
    of_package = overlay.locate("ddp", f"{package / 'wrapper.py'}:Wrapper")
    added = judging.chosen(of_package, operators=["arithmetic"])[0]
    overlay.write(of_package, added, tmp_path / "overlay_near.py")
    assert from_file(tmp_path / "overlay_near.py").Wrapper.value == 2
    assert overlay.executed(tmp_path / "overlay_near.py") == (added.statement,)
    overlay.write(of_package, None, tmp_path / "overlay_marked.py")
    assert from_file(tmp_path / "overlay_marked.py").Wrapper.value == 4
    assert overlay.executed(tmp_path / "overlay_marked.py") == ("1-0", "2-0", "3-0", "4-4")


def _judged(pool: Pool, folder: Path, of: Target, names: list[str], cases: int) -> list[Judged]:
    """Judge the unaltered copy, which must hold, and the named mutants."""
    original = overlay.locate(of.part, of.name)
    known = {mutant.name: mutant for mutant in judging.chosen(original)}
    altered: list[Mutant] = [known[name] for name in names]
    entries = judging.entries(of, original, altered, folder)
    detections: list[Detection] = [search(pool, FaultSearch(e, 0, cases), folder) for e in entries]
    assert (detections[0].is_caught, detections[0].reason, detections[0].cases) == (
        False,
        "",
        cases,
    )
    assert all(judging.is_reached(mutant, detections[0]) for mutant in altered)
    pairs = zip(altered, detections[1:], strict=True)
    return [judging.judged(of, mutant, each, detections[0]) for mutant, each in pairs]


def test_mutants_of_the_reference_sampler_are_judged(pool: Pool, tmp_path: Path) -> None:
    """The results say which rule failed, and which mutant refuses, is explained or survives."""
    names = [
        "DistributedSampler.order: argument: torch.randperm(self.length, generator=generator) -> torch.randperm(self.length)",
        "DistributedSampler.__init__: comparison: len(dataset) == 0 -> len(dataset) != 0",
        "DistributedSampler.__init__: constant: True -> False",
    ]
    results = _judged(pool, tmp_path, REFERENCE, names, 40)
    assert [(each.result, each.rule) for each in results] == [
        ("killed", "SHARD-4"),
        ("refused", ""),
        ("explained", ""),
    ]
    text = table(results, "sampler.py")
    assert "noticed: 2 of 2 mutants" in text


def test_a_mutant_that_cannot_be_imported_says_why(pool: Pool, tmp_path: Path) -> None:
    """It is no result about the judge."""
    file = tmp_path / "wrapper.py"
    file.write_text(
        "from ddp_invariants.reference import ddp\n\n\n"
        "class Wrapper(ddp.DistributedDataParallel):\n"
        "    @property\n    def cap(self):\n        return self.bucket_cap\n\n"
        "    @cap.setter\n    def cap(self, value):\n        self.bucket_cap = value\n",
        encoding="utf-8",
    )
    name = "Wrapper.cap: decorator: @property -> no decorator"
    (result,) = _judged(pool, tmp_path, Target("ddp", f"{file}:Wrapper"), [name], 4)
    assert result.result == "not loaded"
    assert "'function' object has no attribute 'setter'" in result.words


def test_mutants_of_the_reference_wrapper_are_judged(pool: Pool, tmp_path: Path) -> None:
    """A wrapper that writes no mean back leaves each rank its own gradients.

    Few cases show nothing of a hook that is removed later.
    """
    names = [
        "DistributedDataParallel._finish: statement: self._write_back(bucket) -> pass",
        "DistributedDataParallel.forward: statement: self._unhook_leaves() -> pass",
    ]
    killed, survived = _judged(pool, tmp_path, WRAPPER, names, 8)
    assert (killed.result, killed.rule) == ("killed", "GRAD-1")
    assert (survived.result, survived.cases) == ("survived", 8)


def test_a_mutant_that_the_harness_could_not_judge_has_no_result() -> None:
    """It is told apart from a copy that cannot be imported."""
    original = overlay.locate("sampler", "reference")
    mutant = judging.chosen(original)[0]
    entry = all_entries()[0]
    unaltered, failed = Detection(entry, 0, 9), Detection(entry, 0, 0, reason="a host was lost")
    for loaded, result in ((True, "failed"), (False, "not loaded")):
        each = judging.judged(REFERENCE, mutant, replace(failed, loaded=loaded), unaltered)
        assert (each.result, each.words) == (result, "a host was lost")


def test_an_explanation_of_a_function_is_for_statements_that_no_case_executes() -> None:
    """A mutant of the same function whose statement was executed survives."""
    of = Target("ddp", "torch")
    mutant = next(
        each
        for each in judging.chosen(overlay.locate("ddp", "torch"))
        if each.definition in explained()["torch"] and each.name not in explained()["torch"]
    )
    missed = Detection(all_entries()[0], 0, 9)
    executed = replace(missed, executed=(mutant.statement,))
    result = judging.judged(of, mutant, missed, missed)
    assert (result.result, result.words) == ("explained", explained()["torch"][mutant.definition])
    assert judging.judged(of, mutant, executed, executed).result == "survived"


def test_every_explanation_names_a_mutant() -> None:
    """The table of survivors has no entry that is out of date."""
    for words, arguments in explained().items():
        if "torch" in words and not importlib.metadata.version("torch").startswith(TABLE_FOR_TORCH):
            continue
        of = judging.target(words)
        chosen = judging.chosen(overlay.locate(of.part, of.name))
        known = {name for each in chosen for name in (each.name, each.definition)}
        assert [name for name in arguments if name not in known] == [], words
        assert all(argument.endswith(".") for argument in arguments.values())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["refrence"], "did you mean reference?"),
        (["sampler:no/file.py:X"], "there is no file no/file.py"),
        (["reference", "--only", "plus"], "'plus' is not one of"),
        (["reference", "--lines", "9-3"], "expected lines such as 80-120"),
        (["torch.nn.parallel:Nothing"], "has no 'Nothing'"),
    ],
)
def test_a_mistake_ends_with_64(words: list[str], sentence: str) -> None:
    """Nothing is started for a target or an option that does not exist."""
    done = CliRunner().invoke(main, ["mutate", *words])
    assert (done.exit_code, sentence in done.output) == (64, True), done.output


def test_a_target_names_its_part() -> None:
    """A prefix names the part; the rest is as the option takes it."""
    assert [str(judging.target(text)) for text in ("torch", "sampler:torch")] == [
        "torch",
        "sampler:torch",
    ]
    ddp, _ = judging.target("opt:torch.distributed.optim:ZeroRedundancyOptimizer").under_test
    assert ddp.optimizer == "torch.distributed.optim:ZeroRedundancyOptimizer"
    with pytest.raises(NamingError):
        judging.target("opt:Zero")
