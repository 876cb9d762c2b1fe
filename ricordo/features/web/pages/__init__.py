"""The pages for people: server-rendered, below `/ui`, and `/` itself.

They load nothing from anywhere else.
"""
