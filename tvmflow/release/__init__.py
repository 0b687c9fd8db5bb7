"""Bundles, gates, promotion."""
