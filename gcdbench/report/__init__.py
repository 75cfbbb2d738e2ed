"""Turn records into leaderboards, plots and a page; nothing here imports torch."""
