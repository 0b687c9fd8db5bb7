"""Shared utilities: errors, files, digests, paths, progress, version."""
