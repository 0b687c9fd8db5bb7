"""Processes that read what nobody vouches for."""
