"""`python -m airflow_provider_pgetl.cli`."""

from __future__ import annotations

import sys

from airflow_provider_pgetl.cli.main import main

sys.exit(main())
