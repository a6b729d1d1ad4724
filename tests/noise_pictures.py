"""Pictures of noise that count how often they are decoded."""

from collections import Counter
from dataclasses import dataclass, field

from PIL import Image

from conftest import noise
from ggss.data.pictures import Context

DECODED: Counter[str] = Counter()
"""By digest."""


@dataclass(frozen=True)
class NoisePicture:
    seed: int
    size: int = 64
    attributes: dict[str, str] = field(default_factory=dict, hash=False)
    context: Context = ()

    @property
    def name(self) -> str:
        return f"noise {self.seed}"

    @property
    def digest(self) -> str:
        return f"noise-{self.seed}-{self.size}"

    def image(self) -> Image.Image:
        DECODED[self.digest] += 1
        return noise(self.seed, self.size, self.size)
