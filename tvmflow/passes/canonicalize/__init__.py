"""Graph passes that convert an imported network to one canonical form."""
