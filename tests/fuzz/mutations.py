"""Bytes that are nearly right: where a parser that trusts too much goes wrong. Seeded, and a hundred thousand a second.

Hypothesis finds the smallest odd input, elsewhere in the tests; this is for numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff")


def mutated(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, with a few changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _CHANGES[chance.randrange(len(_CHANGES))](chance, data, seeds)
    return bytes(data)


def stream(seed: int, seeds: Sequence[bytes], count: int) -> Iterator[bytes]:
    """So many of them; the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield mutated(chance, seeds)


def _flip(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        at, value = chance.randrange(len(data)), chance.choice(_INTERESTING)
        data[at : at + len(value)] = value


def _early(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    """In the first bytes, where lengths and types are."""
    if data:
        data[chance.randrange(min(len(data), 40))] = chance.randrange(256)


def _cut(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _remove(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    del data[at : at + chance.randrange(1, 16)]


def _insert(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.randrange(1, 16))


def _double(chance: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = data[at : at + chance.randrange(1, 64)]


def _splice(chance: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """The end of another seed."""
    other = chance.choice(seeds)
    data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other) + 1) :]


_CHANGES = (_flip, _flip, _overwrite, _early, _early, _cut, _remove, _insert, _double, _splice)
