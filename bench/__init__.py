"""Benchmarks of Ricordo: time, CPU time and memory.

`make bench` prints a table beside the budgets and keeps the figures as JSON.
"""
