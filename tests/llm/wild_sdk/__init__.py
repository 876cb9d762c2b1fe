"""Answers, good and broken, as providers give them that are asked through their own SDKs.

All over real HTTP.
"""
