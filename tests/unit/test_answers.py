"""Tests of the ranks' answers, without ranks."""

from typing import Any

from ddp_invariants.processes.answers import Answer, Answers


def test_a_rank_that_could_not_connect_gives_no_evidence() -> None:
    """Its answer is dropped. Those of other ranks stay, also of one that failed otherwise."""
    failures = {
        kind: {"type": kind, "message": "Connection closed by peer", "traceback": ""}
        for kind in ("RuntimeError", "DistBackendError", "KeyError")
    }
    headers: list[dict[str, Any]] = [{"failed": failure} for failure in failures.values()]
    answered = [Answer(header, memoryview(b"")) for header in (*headers, {"facts": {}})]
    answers = Answers(dict(enumerate(answered)))
    answers.drop_lost()
    assert [*answers.by_rank] == [2, 3]
