"""Batches: many requests to agents, sent at once and answered by a job.

They are for older clients of the retired Letta V1 server.
"""
