"""The audit of memory on the command line.

It finds junk, duplicates, unsupported lines and secrets, and shows growth.
"""
