"""Cells, their keys and their records. Nothing here imports torch."""
