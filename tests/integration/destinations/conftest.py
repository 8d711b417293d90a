"""The pipeline that is driven by hand, for destinations as well."""

from __future__ import annotations

from tests.integration.replication.conftest import source

__all__ = ["source"]
