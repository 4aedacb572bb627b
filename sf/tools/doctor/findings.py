"""One line of the page: what was looked at, what was found, and what to do where it is not good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from sf.errors import SfError

State = Literal["ok", "note", "fail"]
"""Good; works, but could be better; does not work."""


class Finding(NamedTuple):
    """One line."""

    subject: str
    state: State
    found: str
    advice: str = ""

    def __str__(self) -> str:
        """As it is printed."""
        return f"{self.state:<5} {self.subject:<15} {self.found}{f'. {self.advice}' if self.advice else ''}"


Check = Callable[[], Iterable[Finding]]


def findings(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """What all checks find, in their order; one that breaks is a finding as well."""
    for subject, check in checks:
        try:
            yield from check()
        except SfError as error:
            yield Finding(subject, "fail", str(error))
        except Exception as error:  # of any kind: the page goes on
            yield Finding(subject, "fail", f"{type(error).__name__}: {error}")
