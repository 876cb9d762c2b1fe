"""How agents behave, seen from outside: the HTTP API in front, scripted model servers behind, both over real HTTP."""
