"""Network definitions, training and seeded weights."""
