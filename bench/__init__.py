"""Benchmarks of Ricordo: time, CPU time and memory.

`make bench` prints each figure with its budget, and stores the figures as JSON.
"""
