"""`POST /chat/stream`: a student's chat with a tutor.

The format is that of YouLab's first server, so its clients work unchanged.
"""
