"""Access DVC and MLflow; no other package does."""
