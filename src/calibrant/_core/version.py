"""The version, for what is written with it."""

__version__ = "0.3.0"
