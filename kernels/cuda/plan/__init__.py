"""Plans the launches of a forward and a backward pass."""
