"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from airflow_provider_pgetl.local.places import pgetl_home


def add_home(parser: argparse.ArgumentParser) -> None:
    """Add --home."""
    parser.add_argument(
        "--home",
        type=lambda text: Path(text).expanduser().absolute(),
        default=pgetl_home(),
        metavar="DIR",
        help="where the demo keeps its state (default: PGETL_HOME, or .pgetl in the project)",
    )
