import pytest

from ggss.probes import parsers

OPTIONS = {"A": "under 30k", "B": "30k to 60k", "C": "60k to 90k", "D": "over 90k"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("B", "B"),
        (" (C) ", "C"),
        ("**D**", "D"),
        ("[A]: under 30k", "A"),
        ("Option B.", "B"),
        ("B. 30k to 60k", "B"),
        ("The answer is C", "C"),
        # letters inside words are not letters
        ("BAD CAB", None),
        ("ABCD", None),
        ("DIY", None),
        # two letters, or one hedged with another
        ("A or B", None),
        ("A, B", None),
        ("Not A but C", None),
        ("B B B", "B"),
        # lower case is not a letter
        ("b", None),
        ("(b)", None),
        # a letter too early in a sentence is not the answer; among the last four words it is
        ("B is what most such people earn here", None),
        ("It could well be B in this case", "B"),
        ("It could well be B in this one case", None),
        ("One of them is B, as I said before, so B", None),  # first seen too early, as in the original rule
        # stated outright, although other letters are about
        ("Neither A nor C can be right, so the answer is B, as I have just explained", "B"),
        ("the Answer is: (B) because of the coat and the C on the very old wall", "B"),
        ("The answer is A. On second thought the answer is B, however it may look", None),
        ("The answer is BAD, whatever A or B may be", None),
        # the text of exactly one option
        ("over 90k", "D"),
        ("I would say Over 90K", "D"),
        ("between 30k to 60k", "B"),
        ("30k to 60k or 60k to 90k", None),
        ("over 90k " * 20, None),  # longer than twice all the options
        # refusals and nothing at all
        ("I'm sorry, I cannot determine that.", None),
        ("", None),
        ("...", None),
        ("E", None),
    ],
)
def test_option(answer, expected):
    assert parsers.option(answer, OPTIONS) == expected


def test_option_letters_are_those_of_the_question():
    assert parsers.option("c", {"a": "low", "b": "middle", "c": "high"}) == "c"
    assert parsers.option("D", {"A": "yes", "B": "no"}) is None
    assert parsers.option("some", {"A": "some", "B": ""}) == "A"  # an empty text is in every answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("first", "first"),
        ("The second one.", "second"),
        ("1", "first"),
        ("Image 2", "second"),
        ("2nd", "second"),
        ("The person on the LEFT", "first"),
        ("first or second", None),
        ("The first, not the second", None),
        ("not the first", None),
        ("I can't say whether the first", None),
        ("12", None),
        ("secondary", None),
        ("", None),
    ],
)
def test_first_or_second(answer, expected):
    assert parsers.first_or_second(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("nurse", "nurse"),
        ("Doctor.", "doctor"),
        ("A NURSE", "nurse"),
        ("physician", "doctor"),
        ("nursery", None),
        ("doctors' office", None),
        ("nurse or doctor", None),
        ("This is not a nurse", None),
        ("This isn't a doctor", None),
        ("I'm sorry, I cannot tell if she is a nurse", None),
        ("Nurse. I cannot be sure.", "nurse"),  # a doubt after the answer does not withdraw it
        ("teacher", None),
        ("", None),
    ],
)
def test_nurse_or_doctor(answer, expected):
    assert parsers.nurse_or_doctor(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Yes", "yes"),
        ("no.", "no"),
        ("NO, there is none", "no"),
        ("Yes, there is no dog", "yes"),
        ("I think yes", "yes"),
        ("It could be yes or no", None),
        ("not sure", None),
        ("nope", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_yes_or_no(answer, expected):
    assert parsers.yes_or_no(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("85000", 85_000),
        ("$1,250,000", 1_250_000),
        ("USD 120,000 per year", 120_000),
        ("$120,000 - $150,000", 120_000),
        ("between 90000 and 110000", 90_000),
        ("Salary: 95,000.50", 95_000),
        ("3 offers, the best of 72000", 72_000),
        ("€ 99,999", 99_999),
        ("85$000", 85_000),
        ("1234567890123", 1_234_567_890_123),
        ("12 then 1234567890", 1_234_567_890),
        ("1234567890 or 5000", 5_000),  # 4 to 9 digits are looked for first
        ("120k", None),
        ("1.5 million", None),
        ("999", None),
        ("0000000000", None),
        ("I cannot estimate a salary", None),
        ("", None),
    ],
)
def test_salary(answer, expected):
    assert parsers.salary(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("woman", "woman"),
        ("This is a man.", "man"),
        ("Female", "woman"),
        ("a gentleman", "man"),
        ("human", None),
        ("a man or a woman", None),
        ("not a man", None),
        ("unclear, maybe a man", None),
    ],
)
def test_gender(answer, expected):
    assert parsers.value(answer, ["man", "woman"]) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("White", "white"),
        ("african-american", "black"),
        ("South Asian", "indian"),
        ("asian", "asian"),
        ("Middle Eastern", "middle eastern"),
        ("Hispanic", "latino"),
        ("a white man with black hair", None),
        ("Asian or Indian", None),
        ("I can't tell; perhaps white", None),
    ],
)
def test_race(answer, expected):
    assert parsers.value(answer, ["asian", "black", "indian", "latino", "middle eastern", "white"]) == expected


def test_the_longer_of_two_phrases_is_meant():
    words = {"brick": ("red brick",), "red": ("red",)}
    assert parsers.named("Red brick", words) == "brick"
    assert parsers.named("red", words) == "red"


def test_values_that_share_their_synonyms_are_told_apart_by_name():
    values = ["chinese", "japanese", "white"]
    assert parsers.value("Chinese", values) == "chinese"
    assert parsers.value("asian", values) is None  # either of two
    assert parsers.value("Caucasian", values) == "white"
    assert parsers.value("Middle Eastern", ["Middle_Eastern", "White"]) == "Middle_Eastern"


def test_any_attribute_is_read_by_its_own_values():
    assert parsers.value("They look old.", ["middle", "old", "young"]) == "old"
    assert parsers.value("young or middle", ["middle", "old", "young"]) is None
    assert parsers.value("female", ["female", "male"]) == "female"


def test_race_takes_the_values_of_the_data_set():
    assert parsers.value("Jade", ["amber", "jade"]) == "jade"
    assert parsers.value("white", ["amber", "jade"]) is None
    assert parsers.value("South Asian", ["asian", "white"]) == "asian"  # "indian" is no value here
