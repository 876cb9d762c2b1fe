"""From stored state to model input.

It has no side effects, and the same state gives the same prompt.
"""
