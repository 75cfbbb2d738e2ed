"""The paper's tables as commands: their cells, and measured next to printed numbers."""
