"""Neural network modules that methods share: the backbone and the heads."""
