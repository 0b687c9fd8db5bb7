"""Before anything runs: doctor, preflight checks, new projects, editing of params.yaml."""
