"""Which room may know which: the directions of imports, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import airflow_provider_pgetl

PACKAGE = Path(airflow_provider_pgetl.__file__).parent
NAME = PACKAGE.name
ENGINE = f"{NAME}.replication"

# Room -> what it must not import, at whatever depth of the file.
FORBIDDEN = {
    "replication": ["airflow", "pyspark", f"{NAME}.lakehouse", f"{NAME}.hooks", f"{NAME}.operators", f"{NAME}.local"],
    "replication/decode": [f"{ENGINE}.source", f"{ENGINE}.store", f"{ENGINE}.spool", "psycopg"],
    "replication/source": [f"{ENGINE}.decode", f"{ENGINE}.store", f"{ENGINE}.spool"],
    "replication/store": [f"{ENGINE}.destinations", f"{ENGINE}.source", f"{ENGINE}.decode", f"{ENGINE}.spool"],
    "replication/destinations": [f"{ENGINE}.store", f"{ENGINE}.source", f"{ENGINE}.decode"],
    "replication/spool": [f"{ENGINE}.store", f"{ENGINE}.source", f"{ENGINE}.decode"],
    "lakehouse": ["airflow", f"{NAME}.hooks", f"{NAME}.operators", f"{NAME}.triggers", f"{NAME}.local"],
    "hooks": [f"{NAME}.operators", f"{NAME}.triggers", f"{NAME}.local"],
    "triggers": [f"{NAME}.operators", f"{NAME}.local"],
    "operators": [f"{NAME}.local", f"{NAME}.cli"],
    "local": ["airflow", f"{NAME}.operators", f"{NAME}.triggers", f"{NAME}.cli"],
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_knows_only_what_lies_below_it(room: str) -> None:
    files = list((PACKAGE / room).rglob("*.py"))
    assert files, f"the room {room} is empty"
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in files
        for module in imports(path)
        for banned in FORBIDDEN[room]
        if module == banned or module.startswith(f"{banned}.")
    ]
    assert wrong == []
