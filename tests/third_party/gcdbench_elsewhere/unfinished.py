"""Unfinished: has a mistake on purpose."""

from __future__ import annotations

from gcdbench.nowhere import something

from gcdbench.plugin import Method


class Unfinished(Method):
    step = something
