"""What Ricordo takes: time, processor, memory.

`make bench` prints a table beside the budgets and keeps the figures as JSON.
"""
