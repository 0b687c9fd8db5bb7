"""Datasets, images, labels and their preprocessing."""
