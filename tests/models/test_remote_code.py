"""Nobody else's code runs: planted wherever a model, a checkpoint or a steerer could hold some, it leaves no mark."""

import io
import json
import shutil
import sys
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file

import ggss
from ggss import InputError, cli
from ggss.cli import app
from ggss.models import load_vlm
from ggss.serve.engine import Load, WorkerSetup
from ggss.serve.worker import load_model
from ggss.steering.artefact import signed
from ggss.steering.checkpoints import read_pt
from planted import planted

CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("run")
from transformers import BaseImageProcessor, PreTrainedConfig, PreTrainedTokenizerFast, ProcessorMixin
class Config(PreTrainedConfig):
    model_type = "planted"
class Processor(ProcessorMixin): ...
class Pixels(BaseImageProcessor): ...
class Tokenizer(PreTrainedTokenizerFast): ...
"""


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return exec, (self.code,)


@pytest.fixture(scope="module", params=["llava-vicuna", "pixtral", "qwen3-vl"])
def whole(request, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    vlm = tiny(request.param)
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """The file that planted code writes. Whoever asks whether to run it is told yes."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n" * 1000))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "marker"


@pytest.fixture
def folder(whole, marker, tmp_path):
    """A copy of a model, with a module that marks that it was run."""
    copy = shutil.copytree(whole, tmp_path / "model")
    (copy / "planted.py").write_text(CODE.format(marker=str(marker)))
    return copy


def edit(path, **entries):
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | entries))


def in_config(folder):
    edit(folder / "config.json", model_type="planted", auto_map={"AutoConfig": "planted.Config"})


def in_known_config(folder):
    classes = {"AutoConfig": "planted.Config", "AutoModelForImageTextToText": "planted.Config"}
    edit(folder / "config.json", auto_map=classes)


def in_processor(folder):
    edit(folder / "processor_config.json", processor_class="Planted", auto_map={"AutoProcessor": "planted.Processor"})


def in_image_processor(folder):
    own = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    own |= {"image_processor_type": "Planted", "auto_map": {"AutoImageProcessor": "planted.Pixels"}}
    edit(folder / "processor_config.json", image_processor=own)
    edit(folder / "preprocessor_config.json", **own)


def in_tokenizer(folder):
    classes = {"AutoTokenizer": [None, "planted.Tokenizer"]}
    edit(folder / "tokenizer_config.json", tokenizer_class="Planted", auto_map=classes)


def in_generate(folder):
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "planted.py", folder / "custom_generate" / "generate.py")


def in_kernel(folder):
    edit(folder / "config.json", attn_implementation="somebody/kernel")


def in_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    code = (folder / "planted.py").read_text()
    torch.save(tensors | {"more": Planted(code)}, folder / "pytorch_model.bin")


NEEDS_CODE = "needs code of its own.*--trust-remote-code"


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (in_config, NEEDS_CODE),
        (in_image_processor, NEEDS_CODE),
        (in_kernel, NEEDS_CODE),
        (in_weights, "cannot be read without running code.*safetensors"),
    ],
)
def test_a_model_that_needs_code_is_refused(folder, marker, plant, message):
    plant(folder)
    with pytest.raises(InputError, match=message) as caught:
        load_vlm(folder)
    assert "\n" not in str(caught.value)
    assert not marker.exists()
    assert sys.stdin.tell() == 0, "nobody was asked"


@pytest.mark.parametrize("plant", [in_known_config, in_processor, in_tokenizer, in_generate])
def test_a_model_that_comes_with_code_is_read_without_it_or_refused(folder, marker, plant):
    """transformers knows these models itself: where it has a class of its own, the model's is left alone."""
    plant(folder)
    with suppress(InputError):
        load_vlm(folder)
    assert not marker.exists()
    assert sys.stdin.tell() == 0, "nobody was asked"


@pytest.mark.parametrize("plant", [in_config, in_image_processor])
def test_the_planted_code_runs_for_those_who_trust_it(folder, marker, plant):
    """The control: what is refused above would have run."""
    plant(folder)
    with suppress(InputError):  # not all of it makes a model
        load_vlm(folder, trust_remote_code=True)
    assert marker.read_text() == "run"


def test_what_is_kept_of_a_model_is_kept_by_the_code_that_ran(whole, folder):
    in_image_processor(folder)
    trusted = load_vlm(folder, trust_remote_code=True).visual_identity
    assert any(part.startswith("code (") for part in trusted.differences(load_vlm(whole).visual_identity))


def test_pickled_weights_run_when_they_are_unpickled(folder, marker):
    """The control of the pickle; such weights are refused for those who trust, too."""
    in_weights(folder)
    with pytest.raises(InputError, match="without running code"):
        load_vlm(folder, trust_remote_code=True)
    assert not marker.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize(
    "escape",
    [
        "{{ cycler.__init__.__globals__.os.open('MARKER', 65) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}",
        "{{ messages.append(1) }}",
        "{% set x = self.__init__.__globals__ %}{{ x.os }}",
    ],
)
def test_a_chat_template_stays_in_its_sandbox(folder, marker, pictures, escape):
    (folder / "chat_template.jinja").write_text(escape.replace("MARKER", str(marker)))
    vlm = load_vlm(folder)
    with pytest.raises(InputError, match="chat template"):
        vlm.answer(["what ?"], [pictures[:1]])
    assert not marker.exists()


def test_a_checkpoint_and_a_steerer_run_nothing(marker, tmp_path):
    torch.save({"V_bias": Planted(CODE.format(marker=str(marker)))}, tmp_path / "race.pt")
    with pytest.raises(InputError, match="without running code"):
        read_pt(tmp_path / "race.pt")
    assert not marker.exists()
    folder = ggss.fit("ggss", planted(identities=2)[0], attribute="race").save_pretrained(tmp_path / "s")
    for name in ("planted.py", "__init__.py", "ggss.py"):
        (folder / name).write_text(CODE.format(marker=str(marker)))
    assert ggss.Steerer.from_pretrained(folder).method == "ggss"
    config = json.loads((folder / "config.json").read_text())
    for more in ({"auto_map": {"AutoConfig": "planted.Config"}}, {"method": "planted:Config"}):
        (folder / "config.json").write_text(json.dumps(signed(config | more)))
        if "auto_map" in more:
            with pytest.raises(InputError, match="auto_map: Extra inputs are not permitted"):
                ggss.Steerer.from_pretrained(folder)
        else:
            ggss.Steerer.from_pretrained(folder)  # a name, never looked up
    site = {name: entry | {"operator": "planted.Config"} for name, entry in config["sites"].items()}
    (folder / "config.json").write_text(json.dumps(signed(config | {"sites": site})))
    with pytest.raises(InputError, match=r"unknown operator 'planted\.Config'"):
        ggss.Steerer.from_pretrained(folder)
    assert not marker.exists()


@pytest.mark.parametrize("verb", ["doctor", "ask", "discover", "probe"])
def test_no_command_asks_or_runs_code(folder, marker, tmp_path, monkeypatch, capsys, verb, pictures):
    in_config(folder)
    pictures[0].save(tmp_path / "face.png")
    arguments = {
        "doctor": [folder],
        "ask": [folder, tmp_path / "face.png", "what ?"],
        "discover": [folder, "--images", "small-world", "--attribute", "race", "-o", tmp_path / "s"],
        "probe": [folder, "--suite", "small-world", "--tasks", "mcq"],
    }[verb]
    monkeypatch.setattr(sys, "argv", ["ggss", verb, *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "--trust-remote-code" in " ".join(capsys.readouterr().err.split())
    assert not marker.exists()
    assert sys.stdin.tell() == 0


@pytest.mark.parametrize("plant", [in_config, in_image_processor, in_weights])
def test_a_server_runs_no_code_and_cannot_be_told_to(folder, marker, plant):
    served = {command.callback.__name__: command.callback for command in app.registered_commands}
    assert "trust_remote_code" in served["ask"].__annotations__
    assert "trust_remote_code" not in served["serve"].__annotations__
    plant(folder)
    assert "trust_remote_code" not in WorkerSetup.__annotations__
    with pytest.raises(InputError, match="code"):
        load_model(Load(WorkerSetup(str(folder), {}, 4, 8, 100, 0)))
    assert not marker.exists()
    assert sys.stdin.tell() == 0, "nobody was asked"
