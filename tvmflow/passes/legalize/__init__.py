"""Passes that lower operators to TIR in the form that schedules expect."""
