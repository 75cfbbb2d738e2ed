"""The paper's tables as commands: what they plan, what was measured, and the paper beside it."""
