"""Executes a plan: skips recorded cells, trains and scores the others."""
