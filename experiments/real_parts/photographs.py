"""Photographs with captions for training the projector: COCO's, of those only the ones that anyone may use and adapt.

COCO's photographs are from Flickr, each with its own licence, which its files of captions name for each photograph.
Kept are Attribution, Attribution-ShareAlike, and those without known restrictions; not what forbids commercial use
or adaptations. The captions are CC BY 4.0.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ggss.errors import InputError

PERMITTED = ("licenses/by/2.0", "licenses/by-sa/2.0", "commons/usage", "usa.gov/copyright")
"""In the addresses of licences."""
PEOPLE = frozenset(
    [
        "man",
        "woman",
        "person",
        "people",
        "boy",
        "girl",
        "lady",
        "guy",
        "men",
        "women",
        "child",
        "kid",
        "he",
        "she",
        "his",
        "her",
    ]
)
NO_THINGS = frozenset(
    [
        "he",
        "she",
        "her",
        "couple",
        "group",
        "player",
        "young",
        "old",
        "standing",
        "sitting",
        "holding",
        "image",
        "picture",
        "photo",
        "front",
        "back",
        "side",
        "top",
        "with",
        "from",
        "that",
        "this",
        "there",
        "some",
        "next",
        "several",
        "white",
        "black",
        "brown",
        "and",
        "are",
        "the",
        "two",
        "three",
        "large",
        "down",
        "blue",
        "green",
        "red",
        "cell",
        "eating",
        "flying",
        "parked",
        "playing",
        "riding",
        "walking",
        "dogs",
        "area",
        "near",
        "over",
        "under",
        "other",
        "very",
        "small",
        "big",
        "his",
        "their",
        "them",
        "they",
        "one",
        "four",
        "many",
        "lot",
        "bunch",
        "being",
        "into",
        "has",
        "looking",
        "wearing",
        "going",
        "out",
        "off",
        "while",
        "behind",
    ]
)
"""Words that are no answer to what a picture shows: for people's race and age, and for what is no thing."""


@dataclass(frozen=True)
class Photograph:
    """A photograph and what people wrote about it."""

    path: Path
    captions: tuple[str, ...]
    licence: str = ""

    @property
    def number(self) -> int:
        return int(self.path.stem)

    @property
    def words(self) -> frozenset[str]:
        return frozenset().union(*map(caption_words, self.captions))


def caption_words(caption: str) -> frozenset[str]:
    """Its words in lower case."""
    return frozenset(re.findall(r"[a-z]+", caption.lower()))


def read_photographs(folder: Path, limit: int) -> list[Photograph]:
    """At most so many photographs in a folder with `captions*.json`: first those of people, by their number."""
    captions: dict[int, list[str]] = {}
    permitted: dict[int, str] = {}
    for file in sorted(folder.glob("captions*.json")):
        content = json.loads(file.read_text())
        licences = {licence["id"]: licence for licence in content["licenses"]}
        for image in content["images"]:
            licence = licences[image["license"]]
            if any(part in licence["url"] for part in PERMITTED):
                permitted[image["id"]] = licence["name"]
        for annotation in content["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(annotation["caption"].strip())
    photographs = [
        Photograph(path, tuple(dict.fromkeys(captions[number])), permitted[number])
        for number in sorted(set(permitted) & set(captions))
        if (path := folder / f"{number:012d}.jpg").is_file()
    ]
    if not photographs:
        raise InputError(f"there are no captions*.json and NUMBER.jpg of permitted photographs of COCO in {folder}")
    return sorted(photographs, key=lambda photograph: not photograph.words & PEOPLE)[:limit]


def things(photographs: list[Photograph], least: int = 12) -> list[str]:
    """Words for what at least so many photographs show, by three of their captions: the answers that are trained."""
    counts: Counter[str] = Counter()
    for photograph in photographs:
        words = Counter(word for caption in photograph.captions for word in caption_words(caption))
        counts.update(word for word, times in words.items() if times >= 3 and len(word) > 2)  # three of five say so
    return sorted(word for word, count in counts.items() if count >= least and word not in NO_THINGS)
