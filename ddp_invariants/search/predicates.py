"""Conditions on one number, such as `at least 65` or `odd`, and the choice of the one that fits.

Each number was asked: a case with it failed, or held. A condition is named only if it agrees with
all answers and no other known condition does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

_PERIODS = (2, 3, 4, 5, 6, 7, 8, 10, 16)
"""The divisors of conditions about remainders."""
_QUESTIONS = 24
"""The most numbers that are asked along one axis."""
_BEYOND = 25
"""The numbers beyond the largest one, on which simple conditions must not differ unasked."""
_AHEAD = (1, 2)
"""The distances of the larger numbers that are asked first, of both parities."""


@dataclass(frozen=True)
class Predicate:
    """A condition on a number.

    Attributes:
        words: The condition, after "is".
        holds: A function that returns whether a number meets it.
    """

    words: str
    holds: Callable[[int], bool]

    def fits(self, answers: Mapping[int, bool]) -> bool:
        """Return whether exactly the numbers that meet the condition failed."""
        return all(self.holds(number) == failed for number, failed in answers.items())


def is_power_of_two(number: int) -> bool:
    """Return whether a number is a power of two."""
    return number > 0 and number & (number - 1) == 0


def _between(least: int, most: int, words: str) -> Predicate:
    return Predicate(words, lambda number: least <= number <= most)


def _remainder(divisor: int, rest: int) -> Predicate:
    words = {(2, 0): "even", (2, 1): "odd"}.get((divisor, rest), f"a multiple of {divisor}")
    if divisor > 2 and rest:
        words = f"{rest} more than a multiple of {divisor}"
    return Predicate(words, lambda number: number % divisor == rest)


def _no_multiple(divisor: int) -> Predicate:
    return Predicate(f"no multiple of {divisor}", lambda number: number % divisor != 0)


def _from(kind: Predicate, least: int) -> Predicate:
    """Return the condition for numbers from a least one on."""
    words = f"{kind.words} and at least {least}"
    return Predicate(words, lambda number: number >= least and kind.holds(number))


def _of_a_kind(number: int) -> Iterator[Predicate]:
    """Yield the conditions that a failing number meets and that no size decides."""
    if is_power_of_two(number):
        yield Predicate("a power of two", is_power_of_two)
    else:
        yield Predicate("no power of two", lambda candidate: not is_power_of_two(candidate))
    for divisor in _PERIODS:
        yield _remainder(divisor, number % divisor)
        if number % divisor and divisor > 2:
            yield _no_multiple(divisor)


def _sizes(number: int, answers: Mapping[int, bool]) -> Iterator[Predicate]:
    """Yield the conditions about its size that a failing number meets.

    Args:
        number: The number.
        answers: Numbers, each with whether it failed. Only sizes beside a number that held are
            possible.
    """
    yield _between(number, number, f"{number}")
    held = [candidate for candidate, failed in answers.items() if not failed]
    least = max((candidate + 1 for candidate in held if candidate < number), default=None)
    most = min((candidate - 1 for candidate in held if candidate > number), default=None)
    if least is not None:
        yield Predicate(f"at least {least}", least.__le__)
    if most is not None:
        yield Predicate(f"at most {most}", most.__ge__)
    if least is not None and most is not None and least < most:
        yield _between(least, most, f"from {least} to {most}")


def _simple(number: int, answers: Mapping[int, bool]) -> Iterator[Predicate]:
    """Yield the conditions that real code uses most: sizes, powers of two, odd and even."""
    yield from _sizes(number, answers)
    yield from islice(_of_a_kind(number), 2)


def _conditions(number: int, answers: Mapping[int, bool]) -> Iterator[Predicate]:
    """Yield all conditions that a failing number meets, the simplest first."""
    yield from _sizes(number, answers)
    for kind in _of_a_kind(number):
        yield kind
        yield _from(kind, number)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in words: those in a row as one range."""
    rows: list[list[int]] = []
    for number in sorted(numbers):
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(
        f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows
    )


class Line:
    """The numbers of one axis that were asked.

    Args:
        ask: A function that returns whether a number fails; None if it cannot be told.
        start: A number that fails.
        least: The smallest number.
        most: The largest number.
    """

    def __init__(
        self, ask: Callable[[int], bool | None], start: int, least: int, most: int
    ) -> None:
        self._ask, self._start, self._least, self._most = ask, start, least, most
        self.answers: dict[int, bool] = {start: True}
        self._asked = {start}

    def _answer(self, number: int) -> bool | None:
        if number not in self._asked and len(self._asked) < _QUESTIONS:
            self._asked.add(number)
            answer = self._ask(number)
            if answer is not None:
                self.answers[number] = answer
        return self.answers.get(number)

    def predicate(self) -> Predicate | None:
        """Return the only condition that agrees with all numbers; None if there is no such one."""
        start = self._start
        first = (start - 1, *(start + ahead for ahead in _AHEAD), self._least, 2 * start + 1)
        for number in first:
            if self._least <= number <= self._most:
                self._answer(number)
        if all(self.answers.values()) or not self._close_in():
            return None
        return self._only()

    def _close_in(self) -> bool:
        """Ask between the failing number and those that held; return whether both ends are known."""
        for direction in (-1, 1):
            held = [
                number
                for number, failed in self.answers.items()
                if not failed and (number - self._start) * direction > 0
            ]
            inner, outer = self._start, min(held, key=lambda n: abs(n - self._start), default=None)
            while outer is not None and abs(outer - inner) > 1:
                middle = (inner + outer) // 2
                answer = self._answer(middle)
                if answer is None:
                    return False
                inner, outer = (middle, outer) if answer else (inner, middle)
        return True

    def _only(self) -> Predicate | None:
        """Ask until one condition is left, and then numbers that were not needed for the choice."""
        numbers = self._further()
        while True:
            left = [
                each for each in _conditions(self._start, self.answers) if each.fits(self.answers)
            ]
            left = _different(left, numbers)
            if len(left) <= 1:
                break
            best = max(numbers, key=lambda number: _split(left, number), default=None)
            if best is None or not _split(left, best) or len(self._asked) >= _QUESTIONS:
                return None
            numbers.remove(best)
            self._answer(best)
        if not left or not self._agrees(left[0], numbers) or self._has_rivals(left[0]):
            return None
        return left[0]

    def _has_rivals(self, predicate: Predicate) -> bool:
        """Return whether another simple condition fits, too.

        It may differ only for numbers that no case can have: up to four ranks, `4` is `at least 4`.
        """
        numbers = range(self._least, self._most + _BEYOND)
        return any(
            rival.fits(self.answers)
            and any(rival.holds(number) != predicate.holds(number) for number in numbers)
            for rival in _simple(self._start, self.answers)
        )

    def _agrees(self, predicate: Predicate, numbers: Sequence[int]) -> bool:
        """Return whether further numbers agree with a condition, on either side if there are any."""
        for side in (True, False):
            for number in [each for each in numbers if predicate.holds(each) == side][-2:]:
                self._answer(number)
        # One failing number has many conditions: only its neighbours show that it is the only one.
        return predicate.fits(self.answers) and len(self.answers) >= min(
            4, self._most - self._least + 1
        )

    def _further(self) -> list[int]:
        """Return the numbers that may be asked: near the failing one, and up to its fourfold."""
        start = self._start
        near = range(start - 12, start + 13)
        far = (
            start // 4,
            start // 2,
            2 * start,
            2 * start + 1,
            3 * start,
            4 * start,
            4 * start + 3,
        )
        wanted = dict.fromkeys((*near, *far, 2, 3, 4, 5, 7, 8))
        return [n for n in wanted if self._least <= n <= self._most and n not in self._asked]


def _different(predicates: Sequence[Predicate], numbers: Sequence[int]) -> list[Predicate]:
    """Return the conditions without those that a simpler one equals on all numbers."""
    different: dict[tuple[bool, ...], Predicate] = {}
    for predicate in predicates:
        different.setdefault(tuple(map(predicate.holds, numbers)), predicate)
    return list(different.values())


def _split(predicates: Sequence[Predicate], number: int) -> int:
    """Return how many conditions the answer for a number rules out at least."""
    met = sum(predicate.holds(number) for predicate in predicates)
    return min(met, len(predicates) - met)
