"""Tests of the ranks' answers, without ranks."""

from ddp_invariants.processes.answers import Answer, Answers


def test_a_rank_that_failed_because_its_peer_ended_gives_no_evidence() -> None:
    """Its answer is taken out with the reason, and the answers of other ranks stay."""
    failed = {"type": "RuntimeError", "message": "Connection closed by peer", "traceback": "..."}
    answers = Answers({0: Answer({"failed": failed}, b""), 2: Answer({"facts": {}}, b"")})
    assert answers.take_failures() == {0: "lost its peers: RuntimeError: Connection closed by peer"}
    assert [*answers.by_rank] == [2]
    assert answers.take_failures() == {}
