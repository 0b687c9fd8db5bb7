"""Provide the fixtures of tests/tracking for API calls that need no finished workspace."""

from tests.tracking.conftest import empty_store, ledger

__all__ = ["empty_store", "ledger"]
