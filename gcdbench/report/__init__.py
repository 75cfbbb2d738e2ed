"""Records to leaderboards and plots; nothing here imports torch."""
