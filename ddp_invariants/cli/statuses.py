"""The exit statuses of the commands, in the words of their help."""

from ddp_invariants.errors import INTERRUPTED, UNWRITTEN, USAGE, USAGE_ERROR


def exit_statuses(
    success: str, failure: str = "", inconclusive: str = "", unwritten: str = ""
) -> str:
    """Return the sentence that ends a command's help.

    Args:
        success: The meaning of status 0.
        failure: The meaning of status 1; empty if the command never ends with it.
        inconclusive: The meaning of status 2; empty likewise.
        unwritten: The meaning of the status `UNWRITTEN`; empty likewise.
    """
    meanings = {
        0: success,
        1: failure,
        2: inconclusive,
        USAGE: USAGE_ERROR,
        UNWRITTEN: unwritten,
        INTERRUPTED: "interrupted",
    }
    listed = "; ".join(f"{status} {meaning}" for status, meaning in meanings.items() if meaning)
    return f"Exit status: {listed}."
