"""GPUs: probe them by self-tests, and quarantine those that compute wrong values."""
