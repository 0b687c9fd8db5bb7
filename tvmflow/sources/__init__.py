"""Sources of weights, data and labels."""
