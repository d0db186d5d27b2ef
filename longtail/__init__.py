"""Long-tailed recognition as a likelihood plus a prior."""

__version__ = "0.1.0"
