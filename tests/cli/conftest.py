"""The ledger's fixtures."""

from tests.tracking.conftest import empty_store, ledger

__all__ = ["empty_store", "ledger"]
