"""Answers of providers that are called through their SDKs, over real HTTP.

They are correct or broken.
"""
