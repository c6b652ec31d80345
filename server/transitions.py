"""State machines as tables: a state, and which may follow it. What is not in the table raises."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import TypeVar

from framelane.models.errors import FramelaneError

_State = TypeVar("_State", bound=StrEnum)


class IllegalTransition(FramelaneError):
    """Something was to change into a state that may not follow its own."""

    code = "illegal_transition"


def follow(followers: Mapping[_State, AbstractSet[_State]], what: str, state: _State, new: _State) -> _State:
    """``new``, if ``followers`` has it after ``state``; ``what`` is whose state it is, as "a slot".

    Raises:
        IllegalTransition: naming both.
    """
    if new not in followers[state]:
        raise IllegalTransition(f"{what} that is {state} cannot become {new}")
    return new
