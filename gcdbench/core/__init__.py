"""Names, settings and suites: what can be known without torch."""
