"""Talk to DVC and MLflow; the one place that does."""
