"""What docs/fidelity.md says of each setting of the authors' code is measured again."""

import json

import pytest

from experiments.tools import release_differences as differences
from experiments.tools.fidelity import DIFFERENCES
from named_tests import is_there

MEASURED = json.loads(differences.MEASURED.read_text(encoding="utf-8"))
SWITCHES = {differences.label(*switch): switch for switch in differences.switches()}
# Rounding errors decide some directions of these, and machines round differently.
BY_ROUNDING = [name for name in MEASURED if "components=" in name or "projector=" in name or name.endswith("seed")]


def again(name):
    if name in SWITCHES:
        return differences.on_tokens(*SWITCHES[name])
    return differences.bfloat16_means() if name == "pooling" else differences.rounding_of_bend(name.split()[0])


@pytest.mark.parametrize("name", [name for name, effect in MEASURED.items() if "tokens" in effect])
def test_the_measured_effect_on_tokens_is_repeated(name):
    measured, found = MEASURED[name], again(name)
    if name in BY_ROUNDING:
        assert measured["tokens"] / 3 < found.tokens < measured["tokens"] * 3
    else:
        assert found.tokens == pytest.approx(measured["tokens"], rel=0.05, abs=1e-6)
        assert found.cosine == pytest.approx(measured.get("cosine", found.cosine), abs=0.01)
    if "transcription" in measured:
        assert max(measured["transcription"], found.transcription) < 1e-4


def test_the_measured_effect_on_answers_is_repeated():
    """Of one method; of the settings that do not change it, the answers are the same."""
    world = differences.SmallWorld()
    for options, place in (({}, 0), ({"path": "chord"}, 1)):
        found = world.measured("ggss-no-slerp", options)
        for task, pair in MEASURED["ggss-no-slerp path=chord"]["metrics"].items():
            assert found[task] == pytest.approx(pair[place], abs=0.05)
    found = world.measured(pairs=0.5, parser="release", pooling="release")
    for task, pair in MEASURED["all of ggss"]["metrics"].items():
        assert found[task] == pytest.approx(pair[1], abs=0.05)


def test_every_switch_is_measured_and_every_measure_is_on_the_page():
    assert set(SWITCHES) <= set(MEASURED)
    assert set(MEASURED) == {effect for row in DIFFERENCES for effect in row.effects}
    for row in DIFFERENCES:
        assert is_there(row.test), row.test
