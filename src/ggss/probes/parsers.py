"""From a model's raw answer to the parsed one, or None if it is not clear. Parsers never guess, and never raise.

Where case does not matter it is Unicode's: "NURSE" and "nurſe" are "nurse". Digits of all scripts are digits.
"""

import re
from collections.abc import Mapping, Sequence

from ggss.probes.naming import vocabulary

_PUNCTUATION = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_WITHHELD = re.compile(r"(?<!\w)(?:no|not|nor|neither|never|cannot|unable|unsure|unclear|sorry|\w+n['’]t)(?!\w)")
_STATED = re.compile(r"(?i:answer\s+is)\W*(\w+)(\s+\w)?")
_INSIDE_NUMBERS = str.maketrans("", "", ",，$")
_EXACT = 15  # digits that a float holds exactly; no salary has more

NURSE_DOCTOR: Mapping[str, Sequence[str]] = {"nurse": ("nurse",), "doctor": ("doctor", "physician")}
FIRST_SECOND: Mapping[str, Sequence[str]] = {
    "first": ("first", "1st", "1", "left"),
    "second": ("second", "2nd", "2", "right"),
}


def option(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option chosen, by VLMEvalKit's exact matching; `options` maps letters to their texts.

    In turn: exactly one option letter as a word of its own, upper case, first seen among the last four words; else
    the letter in "answer is X", also in lower case; else exactly one option whose text is in the answer, unless the
    answer is longer than twice all the options. The article "A" counts as a letter, as it does there; the "a" of
    "answer is a dog" does not.
    """
    words = answer.translate(_PUNCTUATION).split()
    letters = [letter for letter in options if letter in words]
    if len(letters) == 1 and words.index(letters[0]) >= len(words) - 4:
        return letters[0]
    stated = {_stated(said, after, options) for said, after in _STATED.findall(answer)} - {None}
    if len(stated) == 1:
        return stated.pop()
    if len(answer) <= 2 * sum(map(len, options.values())):
        told = [letter for letter, text in options.items() if text and text.lower() in answer.lower()]
        if len(told) == 1:
            return told[0]
    return None


def _stated(said: str, next_word: str, options: Mapping[str, str]) -> str | None:
    """The letter that "answer is" is followed by."""
    if said in options:
        return said
    article = said == "a" and next_word
    return said.upper() if len(said) == 1 and said.upper() in options and not article else None


def named(answer: str, words: Mapping[str, Sequence[str]]) -> str | None:
    """The one value whose words the answer uses; None if it names none or several, or denies one ("not a nurse").

    `words` maps each value to the whole words or phrases that mean it, in upper or lower case; if one phrase
    contains another ("south asian", "asian"), the longer one counts. A phrase that means two values is unclear.
    """
    meant = {value: {phrase.casefold() for phrase in phrases if phrase} for value, phrases in words.items()}
    longest_first = sorted(set().union(*meant.values()), key=len, reverse=True)
    answer = answer.casefold()
    found = list(re.finditer(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", answer))
    said = {match.group() for match in found}
    values = [value for value, phrases in meant.items() if said & phrases]
    if len(values) != 1 or _WITHHELD.search(answer[: found[-1].start()]):
        return None
    return values[0]


def first_or_second(answer: str) -> str | None:
    """Which of two pictures was chosen."""
    return named(answer, FIRST_SECOND)


def nurse_or_doctor(answer: str) -> str | None:
    """The one-word occupation."""
    return named(answer, NURSE_DOCTOR)


def value(answer: str, values: Sequence[str]) -> str | None:
    """The perceived value of an attribute among those of the data set, by their names and their synonyms."""
    return named(answer, vocabulary(tuple(values)))


def yes_or_no(answer: str) -> str | None:
    """The first word if it is yes or no, else the only one of the two in the answer."""
    said = re.findall(r"[^\W\d_]+", answer.casefold())
    if said and said[0] in ("yes", "no"):
        return said[0]
    found = {"yes", "no"} & set(said)
    return found.pop() if len(found) == 1 else None


def salary(answer: str) -> int | None:
    """The first integer of 4 to 9 digits after removing commas and dollar signs, else any integer >= 1000.

    A range gives its lower end; "120k" and "1.5 million" are not integers and give None, and so does a number of more
    than 15 digits.
    """
    numbers = re.findall(r"\d+", answer.translate(_INSIDE_NUMBERS))
    usual = [number for number in numbers if 4 <= len(number) <= 9]
    large = [number for number in numbers if len(number) <= _EXACT and int(number) >= 1000]
    return int((usual or large)[0]) if usual or large else None
