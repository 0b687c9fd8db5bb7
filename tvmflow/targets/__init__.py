"""Targets resolved for this machine, and the features of their processors."""
