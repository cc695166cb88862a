"""The engine of campipe: what runs, where, for how long, over what. Imports ``stages``; never the other way."""

__version__ = "0.1.0"
