"""Steering inside vLLM: a plug-in of its group `vllm.general_plugins`. Nothing else of ggss imports vLLM.

The front process (`asked_strengths`) checks what a request asks for and names steerers by their content. The
strengths travel with each picture as a field of it (`strength_words`, `steered_processing`), under vLLM's own hash of
picture and request. The model's process (`steered_models`, `projector_steering`) steers what the projector gives out,
counts it, and fails where it was to steer and did not.
"""
