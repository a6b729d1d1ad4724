"""A steered model behind OpenAI's chat API.

The server's process reads requests, refuses what it must and writes answers; it never imports torch. The model runs
in one process of its own (`worker`), which is replaced if it dies. Between them is an `engine.Engine`.
"""
