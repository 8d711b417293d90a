"""Dates and timestamps past the lake's range, in the text that Postgres prints. Rare, so one by one."""

from __future__ import annotations

_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_DAY_US = 86_400_000_000
# Days from 0000-03-01 to 2000-01-01 in the proleptic Gregorian calendar.
_ERA_SHIFT = 730_425
_ERA_DAYS = 146_097


def date_text(days: int) -> str:
    """Days since 2000-01-01 as a date.

    >>> date_text(2**31 - 1), date_text(-746462), date_text(2921940)
    ('infinity', '0044-03-15 BC', '10000-01-01')
    """
    if days in _INT32:
        return "infinity" if days > 0 else "-infinity"
    year, month, day = _civil(days)
    return _with_era(year, f"{month:02}-{day:02}")


def timestamp_text(ticks: int, zone: str | None) -> str:
    """Microseconds since 2000-01-01 as a timestamp; with a zone, in UTC."""
    if ticks in _INT64:
        return "infinity" if ticks > 0 else "-infinity"
    days, rest = divmod(ticks, _DAY_US)
    seconds, micros = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    year, month, day = _civil(days)
    return _with_era(year, f"{month:02}-{day:02} {clock}{fraction}{'+00' if zone else ''}")


def _with_era(year: int, rest: str) -> str:
    return f"{year:04}-{rest}" if year > 0 else f"{1 - year:04}-{rest} BC"


def _civil(days: int) -> tuple[int, int, int]:
    """Days since 2000-01-01 to year (0 is 1 BC), month, day."""
    era, day_of_era = divmod(days + _ERA_SHIFT, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153  # months counted from March
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year_of_era + (month <= 2), month, day
