"""From packed Relax IR to a library."""
