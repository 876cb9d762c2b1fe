"""How agents behave, seen from outside.

The HTTP API in front, scripted model servers behind, both over real HTTP.
"""
