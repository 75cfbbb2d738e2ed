"""Scores: computed from predictions, and computed again for stored ones."""
