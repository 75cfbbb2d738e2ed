"""Plug-ins of somebody who does not work on gcdbench."""
