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
NEVER_ASKED = PEOPLE | frozenset(
    [
        "male",
        "female",
        "gentleman",
        "mother",
        "father",
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
"""Words that are no option of a question: for people's gender, race and age, and for what is no thing."""


@dataclass(frozen=True)
class Photograph:
    """A photograph and what people wrote about it."""

    path: Path
    captions: tuple[str, ...]

    @property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"[a-z]+", " ".join(self.captions).lower()))


def read_photographs(folder: Path, limit: int) -> list[Photograph]:
    """At most so many photographs in a folder with `captions*.json`: first those of people, by their number."""
    captions: dict[int, list[str]] = {}
    permitted: set[int] = set()
    for file in sorted(folder.glob("captions*.json")):
        content = json.loads(file.read_text())
        licences = {licence["id"]: licence["url"] for licence in content["licenses"]}
        for image in content["images"]:
            if any(part in licences.get(image["license"], "") for part in PERMITTED):
                permitted.add(image["id"])
        for annotation in content["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(annotation["caption"].strip())
    photographs = [
        Photograph(path, tuple(dict.fromkeys(captions[number])))
        for number in sorted(permitted & set(captions))
        if (path := folder / f"{number:012d}.jpg").is_file()
    ]
    if not photographs:
        raise InputError(f"there are no captions*.json and NUMBER.jpg of permitted photographs of COCO in {folder}")
    return sorted(photographs, key=lambda photograph: not photograph.words & PEOPLE)[:limit]


def things(photographs: list[Photograph], least: int = 12) -> list[str]:
    """Words for things that at least so many photographs show, by the captions: the options of training questions."""
    counts: Counter[str] = Counter()
    for photograph in photographs:
        words = Counter(
            word for caption in photograph.captions for word in set(re.findall(r"[a-z]{3,}", caption.lower()))
        )
        counts.update(word for word, times in words.items() if times >= 3)  # three of five people say so
    return sorted(word for word, count in counts.items() if count >= least and word not in NEVER_ASKED)
