"""Workloads, search, measurement and tuning records."""
