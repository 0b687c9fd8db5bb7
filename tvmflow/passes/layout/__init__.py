"""Passes that choose and rewrite data layouts: channel packing, weights, channels last."""
