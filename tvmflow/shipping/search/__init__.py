"""Search precisions, layers kept in float and tuning budgets for cells that meet goals."""
