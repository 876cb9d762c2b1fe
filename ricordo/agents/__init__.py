"""One turn of an agent, from the message that came in to the saved answer. Start reading in `turn.py`."""
