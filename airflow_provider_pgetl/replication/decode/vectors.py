"""NumPy to Arrow by handing over buffers.

``pyarrow.array`` of a NumPy array does the same, but imports pandas on its first call: a CPU-second in each process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


def vector(values: npt.NDArray[Any], kind: pa.DataType, null: Mask | None = None) -> pa.Array:
    """Values that have the very layout of ``kind``; ``null`` masks what is not there."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity(null), data])


def booleans(values: Mask, null: Mask | None = None) -> pa.Array:
    """A mask as Arrow."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity(null), _bits(values)])


def mask(values: pa.Array) -> Mask:
    """A boolean array without nulls as a mask."""
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    found = np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :]
    return found.view(np.bool_)


def validity(null: Mask | None) -> pa.Buffer | None:
    """Arrow's bitmap of what is there; None where nothing is missing."""
    return None if null is None else _bits(~null)


def _bits(values: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
