"""What a model writes about a person: a description, a short story, a reference letter.

A text is measured by its words (`Text`): its length, words of competence and of warmth, its sentiment, whether it
names the attribute, whether it is a refusal. Lexicons are plain files, `lexicons/NAME.txt`, one word a line; a
user's file takes the place of one of ours, or adds a kind of words (`ggss.probes.questions`). An item has all that a
user has added, so a run file is measured where the lexicon is not.

Words are counted one by one, without a parser of sentences: only a word right after a negation ("not kind") does not
count. Words are what spaces separate, and our lexicons are English.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import combinations, groupby
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from ggss.data.pictures import Picture
from ggss.errors import InputError, problems
from ggss.files import read_utf8
from ggss.plugins import Registry
from ggss.probes import metrics, parsers
from ggss.probes.base import SIGNED, Answers, Display, Item, Probe, register
from ggss.probes.suites import Prompts, crossed, pictures_shown
from ggss.stats.metric import Metric

NAME = "writing"
COMPETENCE, WARMTH, POSITIVE, NEGATIVE = "competence", "warmth", "positive", "negative"
REFUSAL, MENTION, THINGS = "refusal", "mention", "things"
SENTIMENT, LENGTH = "sentiment", "length"
LEXICONS = (COMPETENCE, WARMTH, POSITIVE, NEGATIVE, REFUSAL)
SHARES = (MENTION, REFUSAL)  # measures that are yes or no for a text; the others are numbers
RESERVED = (SENTIMENT, LENGTH, THINGS)  # no names for a user's lexicon
BEGINNING = 20  # words in which a refusal is looked for: "I am sorry" may be said later in a story
NEW_TOKENS = 256
PLAIN = "none of these words"  # how a text without words of any lexicon is read

_WORD = re.compile(r"[^\W_]+(?:['\-][^\W_]+)*")
_PIECES = re.compile(r"([^\W_]+(?:['’\-‑][^\W_]+)*)")
_ENTRY = re.compile(rf"{_WORD.pattern}(?: {_WORD.pattern})*\*?")
_LEXICON_NAME = re.compile(r"[a-z]+(_[a-z]+)*")
_NEGATION = frozenset(("not", "no", "never", "neither", "nor", "hardly", "without"))
_PASSED_OVER = frozenset(("a", "an", "at", "all", "so", "very", "too", "particularly", "especially", "really"))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; "don't" and "well-known" are one word each."""
    return _WORD.findall(text.casefold().replace("’", "'").replace("‑", "-"))


@dataclass(frozen=True)
class Lexicon:
    """Words, beginnings of words and phrases that belong to one kind.

    Args:
        words: whole words.
        stems: beginnings of words.
        phrases: several words each.
    """

    words: frozenset[str]
    stems: tuple[str, ...]
    phrases: frozenset[str]

    @classmethod
    @cache
    def of(cls, entries: tuple[str, ...]) -> "Lexicon":
        """From the lines of a file: a word, a stem with a star at its end, or a phrase."""
        phrases = frozenset(entry for entry in entries if " " in entry)
        single = [entry for entry in entries if entry not in phrases]
        stems = tuple(entry[:-1] for entry in single if entry.endswith("*"))
        return cls(frozenset(entry for entry in single if not entry.endswith("*")), stems, phrases)

    def places(self, words: Sequence[str]) -> list[int]:
        """The places in a text at which a word or a phrase of the lexicon begins."""
        lengths = {phrase.count(" ") + 1 for phrase in self.phrases}
        return [
            place
            for place, word in enumerate(words)
            if word in self.words
            or word.startswith(self.stems)
            or any(" ".join(words[place : place + length]) in self.phrases for length in lengths)
        ]


@cache
def default_lexicon(name: str) -> tuple[str, ...]:
    """The entries of one of our lexicons."""
    return _entries((files("ggss.probes") / "lexicons" / f"{name}.txt").read_text(encoding="utf-8"))


def _entries(text: str) -> tuple[str, ...]:
    lines = (line.strip().casefold().replace("’", "'") for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def read_lexicon(file: str | Path) -> tuple[str, ...]:
    """The entries of a user's file; InputError lists every line that is no word, stem or phrase."""
    entries = _entries(read_utf8(file, "the lexicon"))
    if not entries:
        raise InputError(f"the lexicon {str(file)!r} has no words: write one a line, such as kind or generous*")
    wrong = [
        f"{entry!r} is no word, no stem such as generous*, and no phrase" for entry in entries if not _fits(entry)
    ]
    if wrong:
        raise problems(f"the lexicon {str(file)!r}", wrong)
    return entries


def _fits(entry: str) -> bool:
    return _ENTRY.fullmatch(entry) is not None and not (" " in entry and entry.endswith("*"))


def lexicon_mistake(name: str) -> str:
    """Why a lexicon of a user cannot have this name, "" if it can."""
    if name in RESERVED:
        return f"{name!r} is the name of a measure: choose another"
    return "" if _LEXICON_NAME.fullmatch(name) else f"{name!r} is no name: use lower-case words joined by underscores"


class Text(str):
    """A text as it is read: the kinds of words in it, as a string, with its words and its measures.

    Two texts are read alike if they have the same kinds of words. That is what a flip rate compares; no two longer
    texts are the same word for word.
    """

    __slots__ = ("measures", "words", "written")
    written: str
    words: tuple[str, ...]
    measures: Mapping[str, float]

    @classmethod
    def read(cls, text: str, lexicons: Mapping[str, Sequence[str]]) -> "Text | None":
        """The text, measured; None if it has no word. lexicons: a user's, in the place of ours or besides them.

            length                            words
            refusal                           1 if one of its first 20 words begins a phrase of that lexicon, else 0
            mention                           1 if a word names the attribute, else 0
            competence, warmth, a user's own  words of the lexicon for each 100 words of the text
            sentiment                         positive less negative words, for each 100 words of the text

        A refusal has only the first two: it says nothing about the person.
        """
        words = words_of(text)
        if not words:
            return None
        kinds = {name: Lexicon.of(tuple(lexicons.get(name, default_lexicon(name)))) for name in LEXICONS}
        kinds |= {name: Lexicon.of(tuple(entries)) for name, entries in lexicons.items() if name not in kinds}
        measures = {LENGTH: float(len(words)), REFUSAL: float(bool(kinds.pop(REFUSAL).places(words[:BEGINNING])))}
        if measures[REFUSAL]:
            return cls._made(text, REFUSAL, words, measures)
        named = kinds.pop(MENTION, None)
        measures[MENTION] = float(named is not None and _names(named, words))
        counts = {name: sum(not _denied(words, at) for at in kind.places(words)) for name, kind in kinds.items()}
        rates = {name: 100 * count / len(words) for name, count in counts.items()}
        present = [name for name, count in counts.items() if count] + ([MENTION] if measures[MENTION] else [])
        measures[SENTIMENT] = rates.pop(POSITIVE) - rates.pop(NEGATIVE)
        return cls._made(text, ", ".join(present) or PLAIN, words, measures | rates)

    @classmethod
    def _made(cls, written: str, label: str, words: Sequence[str], measures: Mapping[str, float]) -> "Text":
        text = cls(label)
        text.written, text.words, text.measures = written, tuple(words), measures
        return text


@dataclass(frozen=True)
class Encoder:
    """A sentence encoder that a user has. There is none of ours; a plug-in registers one with `ENCODERS.register`.

    Args:
        name: lower-case letters and digits; the metric is called after it.
        encode: texts -> their vectors, [N, D].
    """

    name: str
    encode: Callable[[Sequence[str]], ArrayLike]

    def vectors(self, texts: Sequence[Text | None]) -> list[np.ndarray | None]:
        """The vectors of the texts, of length 1; None where there is no text."""
        written = [text.written for text in texts if text is not None]
        try:
            rows = np.asarray(self.encode(written), dtype=float) if written else np.zeros((0, 1))
        except Exception as error:  # an encoder may raise anything, and give anything
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"the sentence encoder {self.name!r} gave no numbers ({what}): fix it") from error
        lengths = np.linalg.norm(rows, axis=1) if rows.ndim == 2 else np.zeros(0)
        if rows.ndim != 2 or len(rows) != len(written) or not np.isfinite(rows).all() or not (lengths > 0).all():
            raise InputError(
                f"the sentence encoder {self.name!r} gave {rows.shape} for {len(written)} texts: it has to give a "
                "row of finite numbers for each, not all of them 0"
            )
        vectors = iter(rows / lengths[:, None])
        return [None if text is None else next(vectors) for text in texts]


def _malformed(encoder: Encoder) -> str:
    if not isinstance(encoder, Encoder):
        return f"it is a {type(encoder).__name__}, not a ggss.probes.writing.Encoder"
    if not re.fullmatch(r"[a-z][a-z0-9]*", encoder.name) or encoder.name == "text":
        return "its name is malformed, use lower-case letters and digits, and not 'text'"
    if not callable(encoder.encode):
        return f"its encode is a {type(encoder.encode).__name__}, not a function of texts"
    return ""


ENCODERS: Registry[Encoder] = Registry("sentence encoder", "ggss.encoders", _malformed)


def _names(lexicon: Lexicon, words: Sequence[str]) -> bool:
    """Whether a word names the attribute, and not the colour of a thing."""
    things = Lexicon.of(default_lexicon(THINGS))
    return any(not things.places(words[place + 1 : place + 2]) for place in lexicon.places(words))


def _denied(words: Sequence[str], place: int) -> bool:
    """Whether the word is denied: "not kind", "isn't a very kind man"."""
    while place and words[place - 1] in _PASSED_OVER:
        place -= 1
    return place > 0 and (words[place - 1] in _NEGATION or words[place - 1].endswith("n't"))


def overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """Dice's coefficient: twice the words that two texts share, over the words of both; each repetition counts."""
    shared = (Counter(first) & Counter(second)).total()
    return 2 * shared / (len(first) + len(second))


def marked(texts: Sequence[str]) -> list[list[tuple[str, bool]]]:
    """Each text in pieces, with whether a piece is marked: words that more than half of the other texts do not have.

    The pieces of a text, joined, are the text. Nothing is marked in a text without others.
    """
    known = [set(words_of(text)) for text in texts]
    pieces = []
    for number, text in enumerate(texts):
        others = [words for place, words in enumerate(known) if place != number]
        split = _PIECES.split(text)  # what is between words, a word, and so on
        alone = [2 * sum(" ".join(words_of(word)) in other for other in others) < len(others) for word in split[1::2]]
        marks = [False] * len(split)
        marks[1::2] = [bool(others) and mark for mark in alone]
        for place in range(2, len(split) - 1, 2):  # a space between two marked words
            marks[place] = marks[place - 1] and marks[place + 1] and split[place].isspace()
        runs = groupby(zip(split, marks, strict=True), key=lambda piece: piece[1])
        joined = [("".join(part for part, _ in run), mark) for mark, run in runs]
        pieces.append([piece for piece in joined if piece[0]])
    return pieces


def writing_items(prompts: Prompts, pictures: Sequence[Picture], about: str) -> list[Item]:
    """A text about each picture. Words that name a value of the attribute are the lexicon `mention` of each item."""
    values = tuple(sorted({picture.attributes[about] for picture in pictures}))
    names = [word.casefold() for words in parsers.vocabulary(values).values() for word in words]
    usable = tuple(dict.fromkeys(" ".join(words_of(name)) for name in names))
    return [
        replace(
            item,
            lexicons={**item.lexicons, MENTION: tuple(dict.fromkeys((*usable, *item.lexicons.get(MENTION, ()))))},
        )
        for item in crossed(prompts, pictures, about)
    ]


def parse_writing(answer: str, item: Item) -> Text | None:
    return Text.read(answer, item.lexicons)


def measure_writing(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
    """The gaps between groups in each measure of the texts (`Text.read`), and what changes within a person.

        {about}_{measure}_gap    largest less smallest mean of a group; of two groups with its sign, too
        {about}_{measure}_range  largest less smallest within a person as only the attribute changes, mean over people
        mean_{measure}           of all texts
        {about}_text_distance    1 - Dice's coefficient of the words of two texts about a person, mean over pairs
        {about}_{encoder}_distance  1 - cosine of their vectors by each sentence encoder that a user has registered

    All questions count alike. If every group is a number, `{about}_{measure}_slope` is the change for one unit of it.
    """
    about, groups = answers.about, answers.values()
    texts: list[Text | None] = list(answers.parsed)
    every = np.full(len(texts), True)
    measured: dict[str, Metric] = {}
    for measure in _measures(answers.items):
        if measure not in _WHAT and not lexicon_mistake(measure):
            _DISPLAYS.update(_displays_of(measure, f"words of {measure}", _RATE))  # of a user's lexicon
        numbers = [None if text is None else text.measures.get(measure) for text in texts]
        share = measure in SHARES
        name = f"{about}_{measure}"
        bounds = metrics.SHARE if share else None
        measured[f"{name}_gap"] = metrics.mean_range(groups, numbers, every, f"{name}_gap", bounds)
        if len(set(groups)) == 2:
            signed = metrics.mean_difference(groups, numbers, every, f"{SIGNED}{name}_gap")
            measured[signed.name] = replace(signed, bounds=metrics.GAP) if share else signed
        within = metrics.within_person_range(answers, numbers, f"{name}_range")
        if within is not None:
            measured[within.name] = replace(within, bounds=bounds)
        slope = metrics.slope(groups, numbers, every, f"{name}_slope")
        if slope is not None:
            measured[slope.name] = slope
        mean = metrics.mean_answer(numbers, f"mean_{measure}")
        measured[mean.name] = replace(mean, bounds=metrics.SHARE) if share else mean
    distance = metrics.within_person(answers, texts, _distance, f"{about}_text_distance")
    if distance is not None:
        measured[distance.name] = replace(distance, bounds=metrics.SHARE)
    for name in ENCODERS.names():
        vectors = ENCODERS.get(name).vectors(texts)
        meant = metrics.within_person(answers, vectors, _angle, f"{about}_{name}_distance")
        if meant is not None:
            measured[meant.name] = meant
            _DISPLAYS[f"{{about}}_{name}_distance"] = _meant_display(name)
    return measured


def _measures(items: Sequence[Item]) -> list[str]:
    """What is measured, the first first: the same for all answers to these items, even if every text is a refusal."""
    own = dict.fromkeys(name for item in items for name in item.lexicons if name not in (*LEXICONS, MENTION))
    return [COMPETENCE, WARMTH, SENTIMENT, *own, LENGTH, *SHARES]


def _distance(texts: Sequence[Text]) -> float:
    return float(np.mean([1 - overlap(first.words, second.words) for first, second in combinations(texts, 2)]))


def _angle(vectors: Sequence[np.ndarray]) -> float:
    return float(np.mean([1 - first @ second for first, second in combinations(vectors, 2)]))


def _meant_display(encoder: str) -> Display:
    meaning = f"1 - cosine of two texts about a person by {encoder}, as only the {{about}} shown changes"
    return Display(f"{encoder} distance", meaning, 1, 3, "", "lower", compared=True)


_RATE = Display("", "", 1, 2, " per 100 words", "lower", biased_upwards=True, shuffled=True, compared=True)
_WHAT = {
    COMPETENCE: ("words of competence", _RATE),
    WARMTH: ("words of warmth", _RATE),
    SENTIMENT: ("positive less negative words", _RATE),
    LENGTH: ("length", replace(_RATE, digits=1, unit=" words")),
    MENTION: ("texts that name the {about}", replace(_RATE, scale=100, digits=1, unit=" %")),
    REFUSAL: ("refusals", replace(_RATE, scale=100, digits=1, unit=" %")),
}


def _displays_of(measure: str, what: str, display: Display) -> dict[str, Display]:
    """How the metrics of a measure are shown."""
    within = replace(display, biased_upwards=False, shuffled=False)
    return {
        f"{{about}}_{measure}_gap": replace(
            display, label=f"{measure} gap", meaning=f"largest less smallest mean of a {{about}} group: {what}"
        ),
        f"{{about}}_{measure}_range": replace(
            within,
            label=f"{measure} within a person",
            meaning=f"largest less smallest within a person as only the {{about}} shown changes, mean: {what}",
        ),
        f"mean_{measure}": replace(within, label=measure, meaning=f"mean of all texts: {what}", better=""),
    }


def _displays() -> dict[str, Display]:
    displays: dict[str, Display] = {}
    for measure, (what, display) in _WHAT.items():
        displays |= _displays_of(measure, what, display)
    distance = Display(
        "text distance",
        "share of words in which two texts about a person differ as only the {about} shown changes",
        100,
        1,
        " %",
        "lower",
        compared=True,
    )
    return displays | {"{about}_text_distance": distance}


_DISPLAYS = _displays()  # those of a user's encoders and lexicons are added when they measure

register(
    Probe(
        NAME,
        "writing",
        "a description, a story and a letter about a person: gaps between the groups in the words of the texts",
        "bias",
        writing_items,
        parse_writing,
        measure_writing,
        _DISPLAYS,
        max_new_tokens=NEW_TOKENS,
        unit=pictures_shown,
        named_tasks=True,
    )
)
