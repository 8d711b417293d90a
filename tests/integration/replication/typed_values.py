"""Types and the values that the engine is tried with, and what must become of a value: Postgres is the oracle.

Every built-in type that a column can have and a value can be written for is here, and those of the extensions that
come with the embedded server. Not here: xml (the embedded server is built without it) and PostGIS.
"""

from __future__ import annotations

import ipaddress
import json
import random
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np

from airflow_provider_pgetl.replication.pg_types import Kind, LakeType

EXTENSIONS = ("hstore", "citext", "ltree", "cube", "seg", "isn", "vector")
SETUP = (
    *(f"create extension {name}" for name in EXTENSIONS),
    "create type mood as enum ('sad', 'happy', 'so so', 'NULL', '{x}')",
    "create type pair as (a int, b text)",
    "create type nested as (p pair, m mood[])",
    "create domain positive as int check (value > 0)",
    "create domain small as positive check (value < 100)",
    "create domain short as varchar(5)",
    "create domain price as numeric(12,2)",
    "create domain special as price",
    "create domain ints as int[]",
    "create domain prices as numeric(6,2)[]",
    "create domain pad as char(4)",
    "create domain yes as bool",
    "create domain day as date",
    "create domain place as inet",
    "create domain feeling as mood",
    "create domain couple as pair",
    "create type textrange as range (subtype = text)",
    # The cast of a type to text need not be what the type prints.
    "create type loud as enum ('a', 'b')",
    "create function shout(loud) returns text language sql immutable return 'shouted'",
    "create cast (loud as text) with function shout(loud) as implicit",
)

_RANGES = {
    "int4range": ["[1,5)", "empty", "(,)", "[,7)", "[3,3]"],
    "int8range": ["[1,9223372036854775807)"],
    "numrange": ["[1.50,2.5]", "(NaN,)"],
    "daterange": ["[2024-01-01,infinity)"],
    "tsrange": ['["2024-01-01 00:00:00","2024-01-01 12:00:00.5")'],
    "tstzrange": ['["2024-01-01 00:00:00+02",)'],
    "textrange": ['["a b","c,""d")', '["",x]'],
    "int4multirange": ["{}", "{[1,3),[5,8)}"],
    "int8multirange": ["{(,)}"],
    "nummultirange": ["{[1.1,2.2]}"],
    "datemultirange": ["{[2024-01-01,2024-02-01)}"],
    "tsmultirange": ['{["2024-01-01 00:00:00",)}'],
    "tstzmultirange": ['{["2024-01-01 00:00:00+00",infinity)}'],
    "textmultirange": ['{[a,b),["x y",z)}'],
}
_TIMES = {
    "date": [
        "0001-01-01",
        "2024-02-29",
        "9999-12-31",
        "infinity",
        "-infinity",
        "0044-03-15 BC",
        "0001-12-31 BC",
        "10000-01-01",
        "5874897-12-31",
        "4714-11-24 BC",
        "1969-12-31",
    ],
    "timestamp": [
        "2024-02-29 12:34:56.789",
        "1969-12-31 23:59:59.999999",
        "infinity",
        "-infinity",
        "0001-01-01 00:00:00",
        "0001-12-31 23:59:59.999999 BC",
        "9999-12-31 23:59:59.999999",
        "10000-01-01 00:00:00",
        "294276-12-31 23:59:59.999999",
        "4714-11-24 00:00:00 BC",
        "1900-02-28 23:59:59.1",
    ],
    "timestamp(0)": ["2024-02-29 12:34:56.789"],
    "timestamptz": [
        "2024-02-29 12:34:56.789+02",
        "1883-11-18 12:00:00-07:52:58",
        "-infinity",
        "infinity",
        "0044-03-15 BC",
        "0001-01-01 00:00:00+05",
        "9999-12-31 23:59:59.999999-05",
        "2024-01-01 00:00:00.000001+00",
    ],
    "timestamptz(3)": ["2024-02-29 12:34:56.789123+02"],
    "time": ["00:00:00", "24:00:00", "12:34:56.789", "23:59:59.999999"],
    "time(0)": ["12:34:56.789"],
    "timetz": ["12:34:56+02:30", "24:00:00-15:59:59", "00:00:00.1+00", "01:02:03+01:02:03"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789", "0", "-1 day", "infinity", "-infinity", "178000000 years"],
    "interval day to second": ["3 days 04:05:06.7"],
}
_NUMBERS = {
    "int2": ["-32768", "32767", "0"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "float4": ["1.1", "NaN", "-Infinity", "Infinity", "3.4028235e38", "1e-45", "-0", "1.17549435e-38", "16777217"],
    "float8": [
        "0.1",
        "NaN",
        "Infinity",
        "-Infinity",
        "5e-324",
        "-0",
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
    ],
    "numeric(12,2)": ["-9999999999.99", "0.01", "NaN", "0"],
    "numeric(38,10)": ["1234567890123456789012345678.0123456789", "-9999999999999999999999999999.9999999999"],
    "numeric(38,0)": ["99999999999999999999999999999999999999"],
    "numeric(38,38)": ["0.99999999999999999999999999999999999999"],
    "numeric(5,5)": ["0.00001", "-0.99999"],
    "numeric(39,2)": ["1234567890123456789012345678901234567.89"],
    "numeric": [
        "1e-20",
        "123456789012345678901234567890123456789012345678901234567890.5",
        "NaN",
        "Infinity",
        "-Infinity",
        "1.000",
        "1e1000",
    ],
    "numeric(3,-2)": ["12345"],
    "numeric(3,5)": ["0.00999"],
    "money": ["1.25", "-92233720368547758.08"],
}
_TEXTS = {
    "text": [
        "",
        "a\tb\nc\r",
        "€ 😀 \u0001",
        "back\\slash",
        "NULL",
        "null",
        '"q"',
        "{x,y}",
        " lead",
        "x" * 5000,
        "[1:2]={}",
    ],
    "varchar(5)": ["abc  ", ""],
    "varchar": ["x"],
    "char(5)": ["abc", "", "é"],
    "bpchar": ["ab  "],
    "name": ["n", "Some Name"],
    '"char"': ["c", "", "\\200"],
    "json": ['{"b": 1,  "a": [1e400], "b": "\\u00e9"}', "null", '"x"', "1.50"],
    "jsonb": ['{"b": 1, "a": [1.50, null], "\\"": "\\\\"}', "null", "1e400"],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "tsvector": ["a:1 b:2A", "'it''s' 'a b'"],
    "tsquery": ["a & !b | 'c d':*"],
    "citext": ["MiXed", ""],
    "hstore": ['a=>1, "b c"=>NULL', "", '"q\\"x"=>"y,{}"'],
    "ltree": ["Top.Science"],
    "lquery": ["Top.*{1,2}.x@"],
}
_OTHERS = {
    "bool": ["true", "false"],
    "bytea": ["", "\\x00ff10", "\\x" + "ab" * 3000],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"],
    "inet": ["1.2.3.4", "10.0.0.0/8", "::1", "::ffff:1.2.3.4/128"],
    "cidr": ["10.0.0.0/8", "1.2.3.4/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(3)": ["101"],
    "bit(1)": ["1"],
    "varbit": ["", "10101"],
    "point": ["(1,2)", "(NaN,-Infinity)", "(0.1,1e300)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "box": ["(3,4),(1,2)"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "circle": ["<(1,2),3>"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14"],
    "txid_snapshot": ["10:20:10,14"],
    "xid": ["5"],
    "xid8": ["18446744073709551615"],
    "cid": ["7"],
    "tid": ["(1,2)"],
    "aclitem": ["postgres=r/postgres"],
    "refcursor": ["a cursor"],
    "regclass": ["pg_class"],
    "regtype": ["int4", "text[]"],
    "regproc": ["now"],
    "regprocedure": ["abs(int4)"],
    "regoper": ["pg_catalog.||/"],
    "regoperator": ["+(int4,int4)"],
    "regrole": ["postgres"],
    "regnamespace": ["public"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regcollation": ['"C"'],
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 2"],
    "cube": ["(1, 2, 3),(4, 5, 6)"],
    "seg": ["1.5 .. 2.0"],
    "isbn13": ["978-0-393-04002-9"],
    "vector": ["[1,2.5,-3]"],
    "vector(3)": ["[1,2,3]"],
}
_OWN = {
    "mood": ["sad", "happy", "so so", "NULL", "{x}"],
    "pair": ['(1,"a b")', "(,)", "(2,)", '(3,"q""x\\\\")', '(4,"")'],
    "nested": ['("(1,""a,b"")","{sad,""so so""}")'],
    "positive": ["7"],
    "small": ["42"],
    "short": ["abc"],
    "price": ["1.50", "NaN"],
    "special": ["-2.25"],
    "ints": ["{1,NULL}", "{{1},{2}}", "{}"],
    "prices": ["{1.50,NaN}", "{2.25}"],
    "pad": ["ab"],
    "yes": ["true"],
    "day": ["2024-01-01", "infinity"],
    "place": ["1.2.3.4"],
    "feeling": ["sad"],
    "couple": ['(1,"a b")', "(,)"],
    "loud": ["a"],
}
TYPES: dict[str, list[str]] = {**_NUMBERS, **_TEXTS, **_TIMES, **_RANGES, **_OTHERS, **_OWN}


def lake_value(lake: LakeType, text: str | None) -> tuple[Any, bool]:
    """What the lake must hold for a value that the server prints as ``text``, and whether it is overflow."""
    if text is None:
        return None, False
    try:
        return _HELD[lake.kind](text), False
    except (ValueError, ArithmeticError):
        return None, True


def lake_list(lake: LakeType, elements: list[str | None]) -> tuple[Any, bool]:
    """The same of a list by the texts of its elements: one that can't be held spills the whole."""
    assert lake.element is not None
    held = [lake_value(lake.element, text) for text in elements]
    beyond = any(overflow for _, overflow in held)
    return (None, True) if beyond else ([value for value, _ in held], False)


def exact(value: Any) -> Any:
    """A form in which values are equal only if they are identical: NaN, -0.0, 1.5 against 1.50."""
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [exact(one) for one in value]
    return repr(value)


def _any_text(chance: random.Random) -> str:
    letters = "ab,{}()[]\"'\\ \t\n\r;:=NULnul" + chr(chance.choice((0xE9, 0x20AC, 0x1F600, 0x7F, 0x1, 0xFFFD)))
    return "".join(chance.choices(letters, k=chance.choice((0, 1, 2, 4, 9, 30))))


def _any_bits(layout: str) -> Callable[[random.Random], str]:
    def make(chance: random.Random) -> str:
        data = chance.randbytes(struct.calcsize(layout))
        number = struct.unpack(layout, data)[0] if chance.random() < 0.8 else round(chance.uniform(-1e6, 1e6), 3)
        return repr(number).replace("inf", "Infinity").replace("nan", "NaN")

    return make


def _any_decimal(digits: int, scale: int) -> Callable[[random.Random], str]:
    def make(chance: random.Random) -> str:
        if chance.random() < 0.05:
            return "NaN"
        number = chance.randrange(10 ** chance.randint(1, digits))
        return f"{chance.choice(('-', ''))}{Decimal(number).scaleb(-scale, _WIDE):f}"

    return make


def _any_day(chance: random.Random, last: int) -> str:
    before = chance.random() < 0.1
    year = chance.randint(1, 4700) if before else chance.choice((chance.randint(1, 9999), chance.randint(1, last)))
    return f"{year:04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}{{}}{' BC' if before else ''}"


def _any_clock(chance: random.Random) -> str:
    fraction = f".{chance.randrange(10**6):06}" if chance.random() < 0.7 else ""
    return f"{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}{fraction}"


def _any_timestamp(chance: random.Random, zone: str = "") -> str:
    if chance.random() < 0.05:
        return chance.choice(("infinity", "-infinity"))
    return _any_day(chance, 294275).format(f" {_any_clock(chance)}{zone}")


def _any_zone(chance: random.Random) -> str:
    return f"{chance.choice('+-')}{chance.randrange(15):02}:{chance.randrange(60):02}:{chance.randrange(60):02}"


def _any_json(chance: random.Random, depth: int = 0) -> Any:
    if depth > 2 or chance.random() < 0.5:
        return chance.choice((None, True, chance.randint(-(10**20), 10**20), chance.random(), _any_text(chance)))
    if chance.random() < 0.5:
        return [_any_json(chance, depth + 1) for _ in range(chance.randrange(3))]
    return {_any_text(chance): _any_json(chance, depth + 1) for _ in range(chance.randrange(3))}


def _any_inet(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return f"{ipaddress.IPv4Address(chance.getrandbits(32))}/{chance.randrange(33)}"
    return f"{ipaddress.IPv6Address(chance.getrandbits(128))}/{chance.randrange(129)}"


def _any_pair(chance: random.Random) -> str:
    text = _any_text(chance).replace("\\", "\\\\").replace('"', '\\"')
    return f'({chance.choice(("", chance.randint(-9, 9)))},"{text}")'


def _any_interval(chance: random.Random) -> str:
    part = chance.randint
    return f"{part(-9999, 9999)} years {part(-99, 99)} mons {part(-9999, 9999)} days {part(-(10**12), 10**12)} us"


_WIDE = Context(prec=60)
# Makers of literals that a type takes.
RANDOM: dict[str, Callable[[random.Random], str]] = {
    "bool": lambda chance: chance.choice("tf"),
    "int2": lambda chance: str(chance.randint(-(2**15), 2**15 - 1)),
    "int8": lambda chance: str(chance.randint(-(2**63), 2**63 - 1) >> chance.randrange(64)),
    "oid": lambda chance: str(chance.getrandbits(32)),
    "float4": _any_bits(">f"),
    "float8": _any_bits(">d"),
    "numeric(12,2)": _any_decimal(12, 2),
    "numeric(38,10)": _any_decimal(38, 10),
    "numeric": _any_decimal(55, 20),
    "text": _any_text,
    "char(7)": lambda chance: _any_text(chance)[:7],
    "bytea": lambda chance: "\\x" + chance.randbytes(chance.choice((0, 1, 5, 40))).hex(),
    "date": lambda chance: _any_day(chance, 5874897).format(""),
    "timestamp": _any_timestamp,
    "timestamptz": lambda chance: _any_timestamp(chance, _any_zone(chance)),
    "time": _any_clock,
    "interval": _any_interval,
    "uuid": lambda chance: str(uuid.UUID(int=chance.getrandbits(128))),
    "jsonb": lambda chance: json.dumps(_any_json(chance)),
    "inet": _any_inet,
    "pair": _any_pair,
}


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError
    return value


def _timestamp(text: str) -> datetime:
    if not text.endswith("+00"):
        raise ValueError
    return datetime.fromisoformat(text).astimezone(UTC)


def _naive(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _float4(text: str) -> float:
    return float(np.float32(text))


_HELD: dict[Kind, Any] = {
    Kind.STRING: str,
    Kind.BOOLEAN: {"t": True, "f": False}.__getitem__,
    Kind.INT: int,
    Kind.BIGINT: int,
    Kind.FLOAT: _float4,
    Kind.DOUBLE: float,
    Kind.DECIMAL: _decimal,
    Kind.BINARY: lambda text: bytes.fromhex(text.removeprefix("\\x")),
    Kind.DATE: date.fromisoformat,
    Kind.TIMESTAMP_NTZ: _naive,
    Kind.TIMESTAMP: _timestamp,
}
