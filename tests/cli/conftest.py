"""Provide the fixtures of tests/tracking."""

from tests.tracking.conftest import empty_store, ledger

__all__ = ["empty_store", "ledger"]
