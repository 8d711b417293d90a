"""Values as JSON without loss: what JSON has no form for is text.

null, boolean, integer, text      as they are; an integer has all its digits
float, double                     a number that reads back as the same; "NaN", "Infinity", "-Infinity"
decimal                           text, without an exponent: "12.50"
date, timestamp                   text, ISO 8601: "2024-02-29", "2024-02-29T12:00:00.000001", "...+00:00" with zone
binary                            text, base64
array                             a list of the above
what the lake type can't hold     the text that Postgres prints: "infinity", "NaN", "{{1},{2}}"
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date
from decimal import Decimal
from typing import Any


def encode(value: Any) -> str:
    """One JSON document, on one line."""
    try:
        return _dumps(value)
    except ValueError:  # a float that is no number: rare, so looked for only now
        return _dumps(_named(value))


def _dumps(value: Any) -> str:
    return json.dumps(value, default=_text, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _text(value: Any) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date):  # a datetime is one, too
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _named(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_named(one) for one in value]
    return value
