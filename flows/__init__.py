"""Orders: which stages for which cells, through Prefect. No TVM, no file formats."""
