"""Plug-ins of a third-party package."""
