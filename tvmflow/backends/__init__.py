"""What a kind of processor brings: a row each, one file per row."""
