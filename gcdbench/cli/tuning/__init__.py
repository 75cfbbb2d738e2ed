"""The verb tune, and the study of what settings can be chosen by."""
