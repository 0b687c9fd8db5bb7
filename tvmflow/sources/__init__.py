"""Where weights, data and labels come from."""
