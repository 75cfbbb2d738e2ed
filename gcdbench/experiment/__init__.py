"""What a cell is and what it left behind. Nothing here imports torch."""
