"""Setup and checks before a run: doctor, preflight checks, new projects, editing of params.yaml."""
