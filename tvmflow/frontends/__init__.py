"""One file per framework: source model in, Relax out."""
