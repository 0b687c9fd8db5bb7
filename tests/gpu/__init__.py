"""Networks on GPUs."""
