"""GPUs: what a system has of them, found out by trying, and software drivers for machines that have none."""
