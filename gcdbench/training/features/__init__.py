"""Features of images: frozen ones, kept for all cells, and those of the current weights."""
