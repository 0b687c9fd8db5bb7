"""Ship libraries: bundles, release gates, promotion."""
