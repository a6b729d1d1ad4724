"""A steered model behind OpenAI's chat API.

The server's process reads requests, refuses what it must and sends answers; it never imports torch. The model runs in
one process of its own (`worker` or `vllm_engine`), which is replaced if it dies. `engine` connects the two.
"""
