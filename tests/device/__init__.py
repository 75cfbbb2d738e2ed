"""Tests on a pretend CUDA device."""
