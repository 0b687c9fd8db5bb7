"""MLflow: runs, registered models, releases and history."""
