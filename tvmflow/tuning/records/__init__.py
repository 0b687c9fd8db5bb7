"""Tuning records: their format, log and exchange with MetaSchedule."""
