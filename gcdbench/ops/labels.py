"""The label of images whose class is hidden. Does not import torch."""

from __future__ import annotations

UNLABELLED = -1  # in every array of labels: the class of this row must not be seen
