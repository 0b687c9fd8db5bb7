"""Sessions with devices, with one interface for every transport."""
