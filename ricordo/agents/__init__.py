"""One turn of an agent, from the new message to the saved answer.

Start reading in `turn.py`.
"""
