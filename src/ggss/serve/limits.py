"""How much one request may ask for, and how many may wait."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """body, picture: bytes. pixels: of one picture. rows: answers that are written together; also the most choices of
    one request. queue: requests that are not answered yet. seconds: from the first byte to the last."""

    body: int = 32 * 2**20
    picture: int = 10 * 2**20
    pixels: int = 16_000_000
    pictures: int = 8
    tokens: int = 512
    prompt_tokens: int = 32_768
    rows: int = 16
    queue: int = 64
    seconds: float = 120.0
    cache: int = 512 * 2**20
