"""Settings that were searched for, and how well they can be chosen."""
