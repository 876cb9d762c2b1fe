"""Traces of model calls over HTTP."""
