"""One self-contained HTML page: leaderboard, plots, cells and a comparison image by image."""
