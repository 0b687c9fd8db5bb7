"""Prefect flows: run stages for cells. No TVM, no file formats."""
