"""Build candidates and time them on devices."""
