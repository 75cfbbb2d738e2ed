"""Pictures of single cells: what a trained model sees, and what a method put together.

Plots of many records are in ``gcdbench/report/plots/``; they need numbers only. The pictures here
need images, and two of them the trained model, so this package may import torch and the runner.
"""
