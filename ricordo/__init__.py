"""Ricordo: a self-hosted server for AI agents whose memory belongs to the people it is about."""

__version__ = "0.1.0"
