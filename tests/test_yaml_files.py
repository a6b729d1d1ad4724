"""YAML of plans and wordings: what could be misread is refused, with its line."""

import pytest

from ggss.errors import InputError
from ggss.files import read_yaml
from ggss.probes import suites
from ggss.study.plan import Plan


def read(tmp_path, text):
    file = tmp_path / "file.yaml"
    file.write_text(text, encoding="utf-8")
    return read_yaml(file, "the plan")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "'a' is there twice, in line 1 and in line 3"),
        ("x:\n  - {b: 1}\n  - b: 1\n    c: 2\n    b: 1", "'b' is there twice, in line 3 and in line 5"),
        ("a: 1\n'a': 2", "'a' is there twice, in line 1 and in line 2"),
        ("a: 1\nb: " + "9" * 5000, "the whole number in line 2, which begins 99999999999999999999, is too large"),
        ("a: -9223372036854775808", "too large"),
        ("[" * 5000, "nested too deeply, at most 32 levels are read"),
        ("a:\n" + "".join(" " * n + "- \n" for n in range(1, 40)), "nested too deeply"),
        ("a: &a [*a]", "recursive"),
        ("a: !!timestamp 2024-01-31", "timestamp"),
        ("a: !!binary aGk=", "binary"),
        ("a: !!int x", "invalid literal"),
        ("a: !!python/object/apply:os.getcwd []", "python/object"),
        ("a: [", "not usable YAML"),
        ("\0", "not usable YAML"),
    ],
)
def test_what_could_be_misread_is_refused_with_its_line(tmp_path, text, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(f"the plan {str(tmp_path / 'file.yaml')!r}")
    assert "\n" not in str(refused.value)


def test_merged_mappings_do_not_grow_without_end(tmp_path):
    levels = ["l0: &l0 {a: 1}"] + [f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    with pytest.raises(InputError, match="merges too many others"):
        read(tmp_path, "\n".join(levels))
    assert read(tmp_path, "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}")["b"] == {"x": 1, "y": 3}


def test_references_of_references_are_no_load(tmp_path):
    """As a value they are one list each; as a key they are refused, without writing them out."""
    levels = ["l0: &l0 [1]"] + [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    found = read(tmp_path, "\n".join(levels))
    assert found["l11"][9] is found["l10"]
    with pytest.raises(InputError, match="unhashable key"):
        read(tmp_path, "\n".join([*levels, "? *l11", ": 1"]))


def test_dates_and_words_are_text(tmp_path):
    assert read(tmp_path, "{day: 2024-01-31, no: yes, on: off}") == {"day": "2024-01-31", "no": "yes", "on": "off"}
    kinds = read(tmp_path, "{a: true, b: False, c: 1.5, d: 7, e: null, f: [x, -1], g: 9223372036854775807}")
    assert kinds == {"a": True, "b": False, "c": 1.5, "d": 7, "e": None, "f": ["x", -1], "g": 2**63 - 1}


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"the plan .* does not exist"):
        read_yaml(tmp_path / "none.yaml", "the plan")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(InputError, match="not UTF-8"):
        read_yaml(tmp_path / "latin.yaml", "the plan")


def test_plans_and_wordings_are_read_like_this(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("mcq: {text: x}\nmcq: {text: y}")
    for read_file in (Plan.load, suites.wordings):
        with pytest.raises(InputError, match="'mcq' is there twice, in line 1 and in line 2"):
            read_file(file)


def test_an_option_that_is_a_number_is_refused(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("mcq: {questions: {a: {text: '{options}', options: {1: few, no: 2}}}}")
    with pytest.raises(InputError, match="its options are text, not 1, 2: put them in quotes"):
        suites.wordings(file)
