"""What every floor of the tests shares."""

from __future__ import annotations
