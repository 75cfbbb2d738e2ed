"""Search for settings at equal budgets, without labels that the benchmark hides; no torch."""
