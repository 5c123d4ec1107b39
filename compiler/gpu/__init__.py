"""Plans as programs of a GPU."""
