"""One operator for each unit of work: find the tables, copy one, stream them all."""

from __future__ import annotations
