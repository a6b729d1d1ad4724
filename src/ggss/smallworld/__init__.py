"""The embedded world: painted portraits of a fictional town, questions about them, and tiny VLMs of real classes.

It registers itself as any package's plug-in does, by the entry points of pyproject.toml: its models here, its
pictures in `painter`, its benchmarks and its suite in `suite`. This module imports neither torch nor transformers.
"""

from pathlib import Path

from ggss.models import COLLECTIONS

NAME = "small-world"  # of the collection of models, the suite and the picture set
DEFAULT = f"{NAME}/qwen3-vl"  # what the demo runs on
CHECKPOINTS = Path(__file__).parent / "checkpoints"


def folders() -> dict[str, Path]:
    """The folders of the installed small-world models, by name: `load_vlm("small-world/NAME")`."""
    return {config.parent.name: config.parent for config in sorted(CHECKPOINTS.glob("*/config.json"))}


def embedded() -> list[str]:
    """The names of the installed small-world models."""
    return list(folders())


def short_name(model: str) -> str:
    """A model's name within the small world: `pixtral` for both `pixtral` and `small-world/pixtral`."""
    return model.removeprefix(f"{NAME}/")


COLLECTIONS.add(NAME, folders)
