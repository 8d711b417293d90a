"""Conformance suites: pytest classes to inherit, for stores and destinations of one's own.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Store: ...

Needs pytest (the extra ``test``). Each sentence of a contract has a test; ours run over the built-in ones.
"""

from __future__ import annotations
