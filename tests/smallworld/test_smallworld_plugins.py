"""The small world is a plug-in: it registers itself by entry points, cheaply, and is named in both spellings."""

import subprocess
import sys

import pytest

import ggss
from experiments.training import trainer
from ggss import probes, smallworld
from ggss.data.counterfactuals import PICTURE_SETS
from ggss.errors import InputError
from ggss.models import COLLECTIONS
from ggss.probes.base import PROBES
from ggss.probes.suites import SUITES
from ggss.smallworld import short_name
from ggss.smallworld.demo import load_model


@pytest.mark.parametrize("module", ["", ".painter", ".suite"])
def test_a_plug_in_is_cheap_to_import(module):
    code = f"import sys, ggss.smallworld{module}; print({{'torch', 'transformers'}} & set(sys.modules))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "set()"


def test_all_that_it_brings_is_registered():
    assert {"small-world", "small-world-hair"} <= set(PICTURE_SETS.names())
    assert "small-world" in COLLECTIONS
    assert "small-world" in SUITES
    assert {"smallstar", "smallmme"} <= set(probes.names())
    assert PROBES.package("smallstar") == "ggss"
    assert list(COLLECTIONS.get("small-world")()) == smallworld.embedded()


def test_the_benchmarks_are_probes_like_others():
    star, mme = probes.get("smallstar"), probes.get("smallmme")
    assert (star.kind, star.title) == ("multiple-choice", "SmallStar")
    assert (mme.kind, mme.title) == ("yes-or-no", "SmallMME")
    for probe in (star, mme):
        items = probe.items()
        right = probe.answers(items, [str(item.expected) for item in items])
        assert float(probe.metrics(right, None)["accuracy"]) == 1
        wrong = probe.answers(items, ["" for _ in items])
        assert float(probe.metrics(wrong, None)["accuracy"]) == 0
    assert {"perception", "reasoning"} <= set(mme.metrics(mme.answers(mme.items(), ["yes"] * 720), None))


def test_both_spellings_of_a_model_are_the_same(tmp_path, monkeypatch):
    assert short_name("pixtral") == short_name("small-world/pixtral") == "pixtral"
    for name in ("pixtral", "small-world/pixtral"):
        assert load_model(name).name == "small-world/pixtral"
    folder = smallworld.CHECKPOINTS / "pixtral"
    assert load_model(str(folder)).name == str(folder)
    for name in ("gpt", "small-world/gpt"):
        with pytest.raises(InputError, match=r"there is no model 'small-world/gpt': there are small-world/"):
            load_model(name)
        with pytest.raises(InputError, match="no small-world model 'gpt' to train"):
            trainer.train(name, tmp_path)
    trained = []

    class Stop(Exception):
        pass

    def stopped(name, *others, **options):
        trained.append(name)
        raise Stop

    monkeypatch.setattr(trainer, "Trainer", stopped)
    for name in ("pixtral", "small-world/pixtral"):
        with pytest.raises(Stop):
            trainer.train(name, tmp_path, album=object())
    assert trained == ["pixtral", "pixtral"]


def test_a_steerer_is_discovered_on_the_set_by_its_name(tmp_path, monkeypatch):
    from ggss import cli

    command = ["discover", "small-world/qwen3-vl", "--images", "small-world", "--attribute", "race"]
    monkeypatch.setattr(sys, "argv", ["ggss", *command, "-o", str(tmp_path / "race"), "--exclude", "occupation=ceo"])
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    cli.main()
    steerer = ggss.Steerer.from_pretrained(tmp_path / "race")
    assert (steerer.attribute, steerer.source["images"]) == ("race", 400)
