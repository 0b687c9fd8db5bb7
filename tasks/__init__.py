"""The stages: one file = one Prefect task = one DVC stage = one block of params.yaml = one folder in artifacts/."""
