"""A position in Postgres' write-ahead log.

One meaning everywhere: a progress position P (snapshot, ledger, confirm, cut, lake marker) says that all
commits with ``commit_lsn < P`` are in and none with ``commit_lsn >= P``. Ranges are half-open: ``[from, to)``.
A third of concurrent commits have a ``commit_lsn`` equal to the previous commit's ``end_lsn``, so a ``>``
where ``>=`` belongs loses rows.
"""

from __future__ import annotations

import re

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """An LSN as a number: ``X/Y`` for people and SQL (``str``), decimal in lake markers (``int``)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read ``X/Y``."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not an LSN: {text!r} (expected X/Y with hexadecimal X and Y)")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self!s})"


ZERO = Lsn(0)
