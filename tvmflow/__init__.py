"""Take a pretrained model to a measured, versioned, releasable library on a device, with Apache TVM.

The library package: what each stage means. It knows nothing of Prefect, DVC or MLflow, except in `ledger/`.
"""

__version__ = "0.1.0"
