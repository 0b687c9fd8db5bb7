"""Bundles: the libraries of an app's cells in one signed archive, and the verification of such an archive."""
