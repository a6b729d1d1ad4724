"""What can be asked of the model's processes by `collective_rpc`: vLLM's `worker_extension_cls`.

Answers are plain data, and a steerer that is refused is an answer too: vLLM tells of exceptions by their text only.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ggss.errors import InputError

EXTENSION = f"{__name__}.SteeringWorker"


class SteeringWorker:
    """vLLM mixes it into the class of its workers."""

    def ggss_load(self, folder: str, expected: str | None = None) -> dict[str, Any]:
        """Load a steerer beside the others, under its content: `content`, or `refused` with the sentence."""
        try:
            steerer = self._steering().load(folder, expected)
        except InputError as error:
            return {"refused": str(error)}
        return {"content": steerer.content_hash}

    def ggss_identity(self) -> str:
        """Of the loaded model."""
        return self._steering().identity

    def ggss_counts(self, keys: Sequence[int]) -> list[dict[str, dict[str, Any]] | None]:
        """What was done to the pictures of these keys, by steerer; None for a picture that never came."""
        found = (self._steering().counts.get(key) for key in keys)
        return [None if one is None else {content: asdict(own) for content, own in one.items()} for one in found]

    def _steering(self) -> Any:
        model: Any = self.get_model()  # type: ignore[attr-defined]  # vLLM's
        return model.steering
