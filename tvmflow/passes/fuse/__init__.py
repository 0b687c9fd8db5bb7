"""Passes that fuse operators into one kernel or remove what fusion leaves behind."""
