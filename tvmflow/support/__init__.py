"""What every package may use: errors, files, digests, paths, progress, version."""
