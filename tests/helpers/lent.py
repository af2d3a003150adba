"""Running hosts in the place of hosts that a command would start; it does not end them."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self


class LentHosts:
    """Hosts that somebody else starts and ends.

    Args:
        addresses: Their addresses.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)

    def close(self) -> None:
        """End nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass
