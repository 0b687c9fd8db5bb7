"""Stages, their recipe keys and records, the store of their outputs."""
