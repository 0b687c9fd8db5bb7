"""The ledger's fixtures, for calls that need no finished workspace."""

from tests.tracking.conftest import empty_store, ledger

__all__ = ["empty_store", "ledger"]
