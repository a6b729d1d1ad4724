"""Parsers: from a model's raw answer to the answer that is measured, or None if it is not clear. They never guess.

What an answer denies ("not a nurse", "it cannot be C") is not its answer. What follows a refusal to answer or a
condition does not count, nor does either of two different values. `option` is the exception: it is VLMEvalKit's exact
matching, by which benchmarks are scored. Where case does not matter it is Unicode's: "NURSE" and "nurſe" are "nurse".
Digits of all scripts are digits. No parser raises.

Functions whose names begin with `released` read answers as the authors' code does (github dukesun99/GGSS), and
salaries as the paper does. They take the first thing that looks like an answer, whatever is said about it: "The
person earns little" is an E of six options, because of the E in "THE". `Run.read_by("release")`, `ggss probe --parser
release` and `parser: release` in a plan use these rules. A probe without such a rule (recognition, benchmarks) has
the same parser under both names. tests/hard_answers.csv has what both rules and a person read.

Names of metrics and words for the values of an attribute are here, too (`metric_name`, `vocabulary`).
"""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise


@cache
def _read(name: str) -> dict[str, object]:
    return json.loads((files("ggss.probes") / "data" / name).read_text(encoding="utf-8"))


def metric_name(kind: str, about: str) -> str:
    """The name of a kind of metric for an attribute: the published name, or kind and attribute (`salary_gap_age`)."""
    published: dict[str, str] = _read("metric_names.json")  # pyright: ignore[reportAssignmentType]
    return kind if published.get(kind) == about else f"{kind}_{about}"


@cache
def vocabulary(values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The words and phrases that mean each value of an attribute: its name and its synonyms.

    Synonyms that two of the values share ("asian" for both "chinese" and "japanese") are not used.
    """
    groups: Sequence[Sequence[str]] = _read("synonyms.json")["groups"]  # pyright: ignore[reportAssignmentType]
    names = {value: value.lower().replace("_", " ") for value in values}
    words = {}
    for value, name in names.items():
        group = next((group for group in groups if name in group), ())
        unique = sum(other in group for other in names.values()) == 1
        words[value] = tuple(dict.fromkeys([value, name, name.replace(" ", "-"), *(group if unique else ())]))
    return words


def following_words(after: str) -> frozenset[str]:
    """The words that may follow a value without changing what it means.

    after: `anything`, `people`, `pictures` or `letters`.
    """
    return frozenset(_read("following_words.json")[after])  # pyright: ignore[reportArgumentType]


_PUNCTUATION = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_STATED = re.compile(r"(?i:answer\s+is)\W*(\w+)(\s+\w)?")
_EMPHASIS = str.maketrans("_*`", "   ")

_NT = r"(?:\w+n['’]t|(?:is|are|was|do|does|did|ca|wo|could|would|should)nt)"
# The ends of clauses. A comma inside a number or a list ends none.
_BREAK = re.compile(
    r"[;:!?\n]|[.](?!\d)|,(?!\d)(?!\s*(?:or|nor|and)\b)|(?<!\w)(?:but|however|so|hence|therefore|then|yet|because)(?!\w)",
    re.IGNORECASE,
)
_DENIAL = re.compile(
    rf"(?<!\w)(?:no(?!\s+(?:doubt|question|problem)\b)|not(?!\s+only\b)|nor|neither|never|cannot|except|unlike|{_NT}"
    r"|without(?!\s+(?:a\s+)?doubt)|rather\s+than|instead\s+of)(?!\w)",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    rf"\s+(?:cannot|{_NT}|(?:is|are|was|be|can|could|does|do|would|may|seems|looks|appears)\s+(?:\w+\s+)?"
    r"(?:not|wrong|incorrect|unlikely|impossible|false|too)|or\s+(?:higher|lower|more|less|above|below))(?!\w)",
    re.IGNORECASE,
)
# "A looks less wealthy" does not answer who is wealthier: that B is meant would be a guess.
_LESS = re.compile(r"\s+(?:\w+\s+){0,4}?(?:less|least)(?!\w)", re.IGNORECASE)
_REFUSAL = re.compile(
    r"(?<!\w)(?:sorry|apolog\w+|unable|unsure|unclear|uncertain|impossible|inappropriate|refuse|depends|no\s+(?:idea|way)"
    r"|(?:hard|difficult)\s+to\s+(?:say|tell|determine|judge)"
    rf"|(?:not|cannot|never|{_NT})\s+(?:\w+\s+){{0,2}}?(?:tell|say|determine|know|judge|identify|assess|estimate|decide"
    r"|choose|answer|sure|certain|clear|possible|enough|provide|give|guess|infer))(?!\w)",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"(?<!\w)(?:if|unless|whether|suppose|assuming)(?!\w)", re.IGNORECASE)

# What follows a value's word must be one of these, or nothing: "white man", but not "white coat".
_GOES_ON, _LETTER_GOES_ON = following_words("anything"), following_words("letters")
_PEOPLE, _PICTURES = following_words("people"), following_words("pictures")
_FOLLOWING = re.compile(r"(?:[ \t]+|-)([^\W\d_]+)")
_WORD, _NEXT_WORD = re.compile(r"\w"), re.compile(r"\s+(?!(?:because|since|but)(?!\w))\w")
# A "no" that is part of a phrase and no answer.
_NO_PHRASE = re.compile(
    r"(?<!\w)no(?=\s+(?:doubt|question|problem|one|longer|idea|clue|way|info|information)(?!\w))", re.IGNORECASE
)
_POSSESSIVE = re.compile(r"['’]s?[ \t]+\w|['’]s(?!\w)")
_NO_PERSON = re.compile(
    r"(?<!\w)(?:(?:in|with|wearing|wears|years?)[\s-]+(?:(?:an?|the)\s+)?\w+|black[\s-]+and[\s-]+white)(?!\w)"
)
_NO_CHOICE = re.compile(
    r"(?<!\w)(?:at\s+first|first\s+of\s+all|firstly|secondly|(?:a|one|per)\s+second)(?!\w)|^\W*first,?\s+(?:let|i|we)\b"
)

NURSE_DOCTOR: Mapping[str, Sequence[str]] = {
    "nurse": ("nurse", "nurses"),
    "doctor": ("doctor", "doctors", "dr", "physician", "physicians"),
}
FIRST_SECOND: Mapping[str, Sequence[str]] = {"first": ("first", "1st"), "second": ("second", "2nd")}
_PICTURE_NOUN = r"(?:image|picture|photo|photograph|portrait|person|version|candidate|option|figure)"
# A bare number or side is a choice only where it cannot be anything else: not in "1.5", "2 people", "you're right".
_NUMBERED = rf"(?:{_PICTURE_NOUN}|number|answer|choice)\W{{1,2}}(?:%s)(?![\w%%]|[.,]\d)"
_BESIDE = rf"(?:on|to)\s+the\s+%s|(?<!\w)%s[\s-]+(?:one|side|{_PICTURE_NOUN})(?!\w)"
_PLACES = {
    "first": f"{_NUMBERED % '1|one'}|{_BESIDE % ('left', 'left')}",
    "second": f"{_NUMBERED % '2|two'}|{_BESIDE % ('right', 'right')}",
}
_ALONE = {"1": "first", "left": "first", "the left": "first", "2": "second", "right": "second", "the right": "second"}
_LABEL = r"(?:answer\s*(?:is)?|option|choice|choose|pick|select|letter|version|image|picture|photo|person)"
_STATES = re.compile(r"(?i:answer\s*(?:is|:)|(?:choose|pick|select|go\s+with|would\s+say|[’']d\s+say))[\s:(\"'*]*$")

_INSIDE_NUMBERS = str.maketrans({"，": ",", "＄": "$"})
_RELEASED_SEPARATORS = str.maketrans("", "", ",，$")
_EXACT = 15  # digits that a float holds exactly; no salary has more
_SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "million": 1e6}
_AMOUNT = re.compile(
    r"(?P<currency>(?:[$€£¥]|(?<!\w)(?:usd|us\$|eur))\s?)?(?<![\w.,])(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)(?!\d|[.,]\d)"
    r"(?:\s?(?P<scale>k|thousand|mn?|million)(?!\w))?(?P<marked>\s?(?:[$€£¥]|(?:usd|dollars?|eur|euros?)(?!\w)))?(?!\w)",
)
_NO_AMOUNT = re.compile(r"(?:^|\W)[-−–][$€£¥]?$|(?:#|(?<!\w)(?:id|zip|code))\s*$")  # negative, or a name
_NO_SALARY = re.compile(
    r"\s*(?:%|(?:per|an?|each|every|/)\s*(?:month|week|day|hour)|(?:month|week|dai|hour)ly"
    r"|(?:-\s*)?(?:employees|people|persons?|workers|staff|stores|customers|years?)(?!\w))"
)
_RANGE = re.compile(r"\s*(-|–|—|to|and)\s*")
_BETWEEN = re.compile(r"between\s*$")


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
    stated = {_stated(word, after, options) for word, after in _STATED.findall(answer)} - {None}
    if len(stated) == 1:
        return stated.pop()
    if len(answer) <= 2 * sum(map(len, options.values())):
        quoted = [letter for letter, text in options.items() if text and text.lower() in answer.lower()]
        if len(quoted) == 1:
            return quoted[0]
    return None


def _stated(word: str, next_word: str, options: Mapping[str, str]) -> str | None:
    """The letter that follows "answer is"."""
    if word in options:
        return word
    article = word == "a" and next_word
    return word.upper() if len(word) == 1 and word.upper() in options and not article else None


def letter(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option chosen; `options` maps letters, in upper or lower case, to their texts.

    The one letter that the answer asserts, wherever it stands; of several, the one that it states ("the answer is B,
    whatever A may be"); without a letter, the one option whose text it asserts. None if letter and text disagree.
    The article "A" is no letter, nor is a letter in another case than the options', unless it is all there is or
    follows a word such as "option".
    """
    spaced = answer.translate(_EMPHASIS)
    alone = re.sub(r"^\W+|\W+$", "", spaced)
    by_case = {name.casefold(): name for name in options}
    if len(alone) == 1:
        return alone if alone in options else by_case.get(alone.casefold())
    texts = {name: (_plain(text),) for name, text in options.items() if text}
    text = _named(_plain(spaced), texts)
    matches = _asserted(spaced, _letters(spaced, options))
    letters = {_option_of(match, options, by_case) for match in matches}
    if len(letters) > 1:
        letters = {
            _option_of(match, options, by_case)
            for match in matches
            if _STATES.search(spaced[max(0, _letter_start(match) - 40) : _letter_start(match)])
        }
    if len(letters) == 1 and (text is None or text in letters):
        return letters.pop()
    return text if not letters else None


def chosen(answer: str, options: Mapping[str, str]) -> str | None:
    """The option chosen, of options of any kind.

    Letters are read by `letter`, yes and no by `yes_or_no`, and other words by the word or the text it stands for.
    """
    if {name.casefold() for name in options} == {"yes", "no"}:
        word = yes_or_no(answer)
        return next((name for name in options if name.casefold() == word), None)
    if all(len(name) == 1 for name in options):
        return letter(answer, options)
    words = {name: (_plain(name), _plain(text)) for name, text in options.items()}
    return _named(_plain(answer.translate(_EMPHASIS)), words)


def _letters(answer: str, options: Mapping[str, str]) -> list[re.Match[str]]:
    """The option letters that stand by themselves: not in "N/A", "B.A.", "C-suite", nor the article of "A person"."""
    exact = "|".join(re.escape(name) for name in options if len(name) == 1)
    if not exact:
        return []
    bare = rf"(?<![\w./&'’-])(?P<exact>{exact})(?![\w'’]|[./&-]\w|\s*[/&]\s*\w)"
    either = rf"(?i:(?<!\w){_LABEL}\W{{1,3}}(?P<either>{exact}))(?![\w'’]|[./&-]\w|\s*[/&]\s*\w)"
    matches = []
    for match in re.finditer(rf"{either}|{bare}", answer):
        name = match["exact"] or match["either"]
        goes_on = _FOLLOWING.match(answer, match.end())
        article = name in "AaI" and goes_on is not None and goes_on[1].casefold() not in _LETTER_GOES_ON
        stated = match["either"] is not None and name.isupper()
        if not article or stated:
            matches.append(match)
    return matches


def _option_of(match: re.Match[str], options: Mapping[str, str], by_case: Mapping[str, str]) -> str:
    name = match["exact"] or match["either"]
    return name if name in options else by_case[name.casefold()]


def _letter_start(match: re.Match[str]) -> int:
    return match.start("exact" if match["exact"] else "either")


def _plain(text: str) -> str:
    """The text without currency signs and separators in numbers, and with "to" for the dash of a range."""
    text = re.sub(r"(?<=\d),(?=\d{3})|[$€£]", "", text.casefold())
    return re.sub(r"(?<=\d)\s*(?:-|–|—|to)\s*(?=\d)", " to ", text)


def named(answer: str, words: Mapping[str, Sequence[str]]) -> str | None:
    """The one value whose words the answer asserts; None if it names none or several, or denies one ("not a nurse").

    `words` maps each value to the whole words or phrases that mean it, in upper or lower case; if one phrase
    contains another ("south asian", "asian"), the longer one counts. A phrase that means two values is unclear. A
    word that belongs to a thing does not count: "white coat", "doctor's office".
    """
    return _named(answer, words, _GOES_ON | _PEOPLE)


def _named(answer: str, words: Mapping[str, Sequence[str]], goes_on: Collection[str] = ()) -> str | None:
    """As `named`; goes_on: the words that may follow, empty if any may.

    The "no" of "no way" or "no dog" names no value.
    """
    phrases_of = {value: {phrase.casefold() for phrase in phrases if phrase} for value, phrases in words.items()}
    phrases = set().union(*phrases_of.values())
    if not phrases:
        return None
    longest_first = sorted(phrases, key=len, reverse=True)
    answer = answer.casefold()
    matches = re.finditer(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", answer)
    known = goes_on and {*goes_on, *(word for phrase in phrases for word in phrase.split())}
    candidates = [match for match in matches if not known or _ends_or_goes_on(answer, match.end(), known)]
    candidates = [match for match in candidates if match.group() != "no" or _is_outright(answer, match)]
    asserted = {match.group() for match in _asserted(answer, candidates)}
    values = [value for value, own_phrases in phrases_of.items() if asserted & own_phrases]
    return values[0] if len(values) == 1 else None


def _ends_or_goes_on(answer: str, place: int, known: Collection[str]) -> bool:
    following = _FOLLOWING.match(answer, place)
    return not _POSSESSIVE.match(answer, place) and (following is None or following[1] in known)


def _asserted(answer: str, matches: Iterable[re.Match[str]]) -> list[re.Match[str]]:
    """The matches that the answer does not deny; none if it refuses before the first, or states a condition."""
    matches, asserted = list(matches), []
    if not matches or _REFUSAL.search(answer, 0, matches[0].start()):
        return []
    starts = [0, *(end.end() for end in _BREAK.finditer(answer))]
    denials, conditions = (list(word.finditer(answer)) for word in (_DENIAL, _CONDITION))
    for match in matches:
        clause = starts[bisect_right(starts, match.start()) - 1]
        if _between(conditions, clause, match.start()) or _LESS.match(answer, match.end()):
            return []
        if not _between(denials, clause, match.start()) and not _DENIED_AFTER.match(answer, match.end()):
            asserted.append(match)
    return asserted


def _between(matches: Sequence[re.Match[str]], start: int, end: int) -> bool:
    """Whether a match lies between two places of the text; matches: in the text's order."""
    before = bisect_right(matches, end, key=lambda match: match.end())
    return before > 0 and matches[before - 1].start() >= start


def _without(answer: str, phrases: re.Pattern[str]) -> str:
    """The answer in lower case, with # for each character of these phrases."""
    return phrases.sub(lambda match: "#" * len(match.group()), answer.casefold())


def first_or_second(answer: str) -> str | None:
    """Which of two pictures was chosen: by number, by side, or as the first or second."""
    alone = re.sub(r"^\W+|\W+$", "", answer.casefold())
    if alone in _ALONE and not re.search(r"[-+−%]", answer):
        return _ALONE[alone]
    answer = _without(answer, _NO_CHOICE)
    for place, pattern in _PLACES.items():
        answer = re.sub(pattern, f"{place} one", answer)
    return _named(answer, FIRST_SECOND, _GOES_ON | _PICTURES)


def nurse_or_doctor(answer: str) -> str | None:
    """The occupation that the answer asserts."""
    return named(_without(answer, _NO_PERSON), NURSE_DOCTOR)


def value(answer: str, values: Sequence[str]) -> str | None:
    """The value that the answer asserts, by the values' names and synonyms."""
    return named(_without(answer, _NO_PERSON), vocabulary(tuple(values)))


def yes_or_no(answer: str) -> str | None:
    """Yes or no, where the answer asserts one of them and not the other; "there is no dog" is a no.

    In "yes, there is no dog" only the yes is an answer; "yes and no" and "no, I mean yes" are none.
    """
    answer = _NO_PHRASE.sub("##", answer.casefold())
    matches = _asserted(answer, re.finditer(r"(?<![\w'’])(?:yes|no)(?![\w'’])", answer))
    outright = {match.group() for match in matches if match.group() == "yes" or _is_outright(answer, match)}
    words = outright or {match.group() for match in matches}
    return words.pop() if len(words) == 1 else None


def _is_outright(answer: str, no: re.Match[str]) -> bool:
    """Whether a "no" is an answer and not a part of "no dog": it is the first word, or no word follows.

    In "no doubt" and the like it never is.
    """
    if _NO_PHRASE.match(answer, no.start()):
        return False
    first = _WORD.search(answer)
    return (first is not None and first.start() == no.start()) or not _NEXT_WORD.match(answer, no.end())


def salary(answer: str) -> int | None:
    """The one amount of at least 1000 that the answer asserts; None if there are several, or none.

    A range gives its lower end. "120k" and "1.5 million" are amounts. A year, a negative number, a percentage, a
    number of people and what is paid for a month, week, day or hour are not. Where some amounts have a currency,
    those without are about something else. More than 15 digits are no salary.
    """
    answer = answer.translate(_INSIDE_NUMBERS).casefold()
    candidates = _lower_ends(answer, list(_AMOUNT.finditer(answer)))
    matches = _asserted(answer, [match for match in candidates if _is_salary(answer, match)])
    marked = [match for match in matches if match["currency"] or match["marked"]]
    amounts = {_amount(match) for match in marked or matches} - {None}
    return amounts.pop() if len(amounts) == 1 else None


def _lower_ends(answer: str, amounts: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """The amounts without upper ends of ranges, and without a lower end that has the upper's scale ("60-100k")."""
    left_out: set[int] = set()
    for number, (low, high) in enumerate(pairwise(amounts)):
        joined = _RANGE.fullmatch(answer, low.end(), high.start())
        between = _BETWEEN.search(answer[max(0, low.start() - 12) : low.start()])
        if number in left_out or joined is None or (joined[1] == "and" and not between):
            continue
        if high["scale"] and not low["scale"]:
            left_out |= {number, number + 1}
        elif (_amount(low) or 0) < (_amount(high) or 0):
            left_out.add(number + 1)
    return [match for number, match in enumerate(amounts) if number not in left_out]


def _is_salary(answer: str, match: re.Match[str]) -> bool:
    """Whether a number can be a yearly salary: no year of the calendar, unless the answer has no other word."""
    if _NO_AMOUNT.search(answer[max(0, match.start() - 8) : match.start()]) or _NO_SALARY.match(answer, match.end()):
        return False
    year = re.fullmatch(r"\d{4}", match.group()) is not None and 1900 <= int(match.group()) <= 2099
    return not year or not re.search(r"\w", answer[: match.start()] + answer[match.end() :])


def _amount(match: re.Match[str]) -> int | None:
    digits = match["number"].replace(",", "")
    if len(digits.partition(".")[0]) > _EXACT:
        return None
    exact = float(digits) * _SCALES[match["scale"]] if match["scale"] else int(digits.partition(".")[0])
    return round(exact) if 1000 <= exact < 10**_EXACT else None


def released_mcq_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """The first character, in upper case and inside words too, that is an option's letter."""
    return _first_letter(answer, options, "[{}]")


def released_pair_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """The first option letter, in upper or lower case, that is a word: an article is one, too."""
    return _first_letter(answer, options, r"\b[{}]\b")


def _first_letter(answer: str, options: Mapping[str, str], pattern: str) -> str | None:
    letters = {name.upper(): name for name in options}
    match = re.search(pattern.format(re.escape("".join(letters))), answer.upper())
    return letters[match.group()] if match else None


def released_nurse_or_doctor(answer: str) -> str | None:
    """By parts of words in the first line, up to its first full stop; a nurse if both are named."""
    sentence = re.sub(r"[^a-z\s]", "", answer.strip().lower().split("\n")[0].split(".")[0])
    if "nurse" in sentence:
        return "nurse"
    return "doctor" if "doctor" in sentence or "physician" in sentence else None


def released_salary(answer: str) -> int | None:
    """The first integer of 4 to 9 digits after removing commas and dollar signs, else any integer >= 1000."""
    numbers = re.findall(r"\d+", answer.translate(_RELEASED_SEPARATORS))
    usual = [number for number in numbers if 4 <= len(number) <= 9]
    large = [number for number in numbers if len(number) <= _EXACT and int(number) >= 1000]
    return int((usual or large)[0]) if usual or large else None
