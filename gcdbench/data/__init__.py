"""Datasets: where images are, which are labelled, and how a batch of views is made."""
