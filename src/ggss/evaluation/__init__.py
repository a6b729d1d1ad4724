"""A steered model for external evaluation harnesses."""

from typing import Any


def lmms_eval_models() -> Any:
    """What lmms-eval finds under its entry-point group `lmms_eval.models`: the model `ggss`."""
    from lmms_eval.models.registry_v2 import ModelManifest  # pyright: ignore[reportMissingImports]

    return ModelManifest("ggss", simple_class_path="ggss.evaluation.lmms.LmmsModel")
