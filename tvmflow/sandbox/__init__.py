"""Sandboxed processes that read untrusted files."""
