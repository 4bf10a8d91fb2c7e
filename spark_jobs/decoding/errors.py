"""What goes wrong with a value, and with a schema."""

from __future__ import annotations


class Undecodable(ValueError):
    """A value that is not what it is to be; the message says why, in one clause."""


class SchemaProblem(ValueError):
    """A schema that cannot be used; the message says why, in one clause."""
