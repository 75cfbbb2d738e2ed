"""Dataset sources, one file each; gcdbench.registry finds them by their file names."""
