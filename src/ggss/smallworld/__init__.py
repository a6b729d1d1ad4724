"""The embedded world: painted portraits of a fictional town, questions about them, and tiny VLMs of real classes."""

from pathlib import Path

DEFAULT = "small-world/qwen3-vl"  # what the demo runs on
CHECKPOINTS = Path(__file__).parent / "checkpoints"


def embedded() -> list[str]:
    """The names of the models that this installation carries: `load_vlm("small-world/NAME")`."""
    return sorted(config.parent.name for config in CHECKPOINTS.glob("*/config.json"))
