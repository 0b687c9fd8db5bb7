"""Graph passes that bring an imported network into one canonical form."""
