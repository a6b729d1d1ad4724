"""The text of an answer while its tokens come, cut at the first stop sequence."""

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a decoder's text for a character of which bytes are missing


class AnswerText:
    """Text that has been given away never changes: what may still become a stop sequence is held back."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, [one for one in stop if one]
        self._tokens: list[int] = []
        self._text, self._given = "", 0
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that is now certain, and was not before."""
        self._tokens.append(token)
        self._text = self._decode(self._tokens)
        # A sequence may have begun in text that was given away only if it did not look like one then.
        places = [place for one in self._stop if (place := self._text.find(one, self._given)) >= 0]
        if places:
            self.stopped, self._text = True, self._text[: min(places)]
            return self.rest()
        end = len(self._text) - max(self._held(), len(self._text) - len(self._text.rstrip(UNFINISHED)))
        return self._give(end)

    def rest(self) -> str:
        """What was held back, once the answer is over."""
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        start, self._given = self._given, max(end, self._given)
        return self._text[start : self._given]

    def _held(self) -> int:
        """The length of the longest end of the text with which a stop sequence begins."""
        longest = max(map(len, self._stop), default=0)
        return next(
            (
                length
                for length in range(min(longest, len(self._text)), 0, -1)
                if any(one.startswith(self._text[-length:]) for one in self._stop)
            ),
            0,
        )
