"""The `pgetl` command: the local stack, its tests and its benchmarks."""

from __future__ import annotations
