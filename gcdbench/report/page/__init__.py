"""The report as one HTML file: leaderboard, plots, cells and a comparison image by image."""
