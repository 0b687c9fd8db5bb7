"""Release gates: compare a candidate with the champion."""
