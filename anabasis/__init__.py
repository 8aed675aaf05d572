"""Anabasis: training campaigns that survive machines that come and go."""

__version__ = "0.1.0"
