"""How to reach what a pipeline needs: the source, the state database, Spark."""

from __future__ import annotations
