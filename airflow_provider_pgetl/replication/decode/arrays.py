r"""Postgres array text, one dimension: ``{1,2,NULL}``, ``{"a b","c\"d"}``.

Rows without quotes, nesting or bounds are split by Arrow in one go. Only rows with quotes are read one by one.
Several dimensions (``{{1},{2}}``) and lower bounds (``[2:3]={1,2}``) do not fit a list: they are spilled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.replication.errors import DecodeError

_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Split:
    """Elements of all rows in a row, the offsets of each row's elements, and which rows are null or spilled."""

    elements: pa.Array
    offsets: npt.NDArray[np.int32]
    absent: npt.NDArray[np.bool_]
    spilled: npt.NDArray[np.bool_]


def split(text: pa.Array) -> Split:
    """Take a column of array texts apart; ``absent`` rows (null) and ``spilled`` rows have no elements."""
    absent = text.is_null().to_numpy(zero_copy_only=False)
    spilled = _mask(pc.match_substring_regex(text, r"^\[|^\{\{"))
    quoted = _mask(pc.match_substring_regex(text, r'["\\]')) & ~spilled
    if not quoted.any():
        return _split_plain(text, absent, spilled)
    return _split_quoted(text, absent, spilled)


def any_in_list(offsets: npt.NDArray[np.int32], marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which lists have a marked element."""
    total = np.concatenate([[0], np.cumsum(marked)])
    return np.asarray(total[offsets[1:]] > total[offsets[:-1]])


def _mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), np.bool_)


def _split_plain(text: pa.Array, absent: npt.NDArray[np.bool_], spilled: npt.NDArray[np.bool_]) -> Split:
    empty = _mask(pc.equal(text, "{}")) | absent | spilled
    lists = pc.split_pattern(pc.utf8_slice_codeunits(pc.filter(text, pa.array(~empty)), 1, -1), ",")
    counts = np.zeros(len(text), np.int64)
    counts[~empty] = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    elements = lists.flatten().cast(pa.string())
    elements = pc.if_else(pc.equal(elements, "NULL"), None, elements)
    return Split(elements, _offsets(counts), absent, spilled)


def _split_quoted(text: pa.Array, absent: npt.NDArray[np.bool_], spilled: npt.NDArray[np.bool_]) -> Split:
    """The slow way, row by row: ``"NULL"`` in quotes is a word, escapes are undone."""
    elements: list[str | None] = []
    counts = np.zeros(len(text), np.int64)
    for row, value in enumerate(text.to_pylist()):
        if value is None or spilled[row]:
            continue
        parsed = _parse(value)
        counts[row] = len(parsed)
        elements.extend(parsed)
    return Split(pa.array(elements, pa.string()), _offsets(counts), absent, spilled)


def _parse(value: str) -> list[str | None]:
    elements: list[str | None] = []
    at, last = 1, len(value) - 1
    while at < last:
        match = _ELEMENT.match(value, at, last)
        if match is None:
            raise DecodeError("an array value can't be read", kind="t", offset=at)
        quoted, plain = match.groups()
        if quoted is not None:
            elements.append(_ESCAPED.sub(r"\1", quoted))
        else:
            elements.append(None if plain == "NULL" else plain)
        at = match.end() + 1  # past the comma
    return elements


def _offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(counts).astype(np.int32)])
