"""An exported checkpoint in vLLM as it is, without the plug-in of ggss: the answers of the live steerer."""

import json
import os
import subprocess
import sys

from safetensors.torch import load_file, save_file

import ggss
from conftest import QUESTIONS, steerers
from ggss.models import locate, prompts
from ggss.vllm_plugin.engine import widened

PORTRAITS = 40
STOCK = """
import json, sys
from PIL import Image
from vllm import LLM, SamplingParams


def main():
    model, asked, out = sys.argv[1:]
    engine = LLM(model=model, dtype="float32", max_model_len=512, enforce_eager=True, max_num_seqs=8)
    requests = [
        {"prompt": own["prompt"], "multi_modal_data": {"image": Image.open(own["picture"])}}
        for own in json.load(open(asked))
    ]
    outputs = engine.generate(requests, SamplingParams(temperature=0, max_tokens=4))
    assert not [name for name in sys.modules if name.split(".")[0] == "ggss"]
    json.dump([list(own.outputs[0].token_ids) for own in outputs], open(out, "w"))


if __name__ == "__main__":
    main()
"""

# This environment has no torchvision (its builds need CUDA), which vLLM's LLaVA imports and does not use. Python runs
# this file first in each of vLLM's processes: an import gets an empty module, a question whether it is there gets no.
NO_TORCHVISION = """
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class Empty(ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "find_spec" and frame.f_code.co_filename.endswith("util>"):
                return None
            frame = frame.f_back
        return ModuleSpec(name, Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        return Empty(spec.name)

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(Finder)
"""


def stock(model, requests, folder):
    """The token ids with which vLLM answers, in a process that never imports ggss."""
    (folder / "stock.py").write_text(STOCK)
    (folder / "sitecustomize.py").write_text(NO_TORCHVISION)
    (folder / "asked.json").write_text(json.dumps(requests))
    words = [
        sys.executable,
        str(folder / "stock.py"),
        str(model),
        str(folder / "asked.json"),
        str(folder / "out.json"),
    ]
    without = {
        "VLLM_PLUGINS": "",
        "PYTHONPATH": str(folder),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    subprocess.run(words, check=True, env=os.environ | without, cwd=folder)
    return json.loads((folder / "out.json").read_text())


def as_released(folder):
    """Tensors under the names that LLaVA's checkpoints on the hub have: vLLM knows no others."""
    file, old, new = folder / "model.safetensors", "vision_tower.", "vision_tower.vision_model."
    renamed = {
        name.replace(old, new) if name.startswith(old) and not name.startswith(new) else name: own
        for name, own in load_file(file).items()
    }
    save_file(renamed, file, {"format": "pt"})
    return folder


def test_stock_vllm_serves_an_exported_checkpoint(tmp_path):
    vlm, faces, _ = steerers("llava-vicuna", tmp_path)
    acts = ggss.collect(vlm, faces, keep_tokens=True, cache=tmp_path / "cache", show=False)
    steerer = ggss.fit("pace", acts, attribute="race")
    base = as_released(widened(locate(vlm.name), tmp_path / "base"))
    made = ggss.export(base, {"race": steerer}, 1.0, tmp_path / "exported")
    requests, pictures = [], [picture.image() for picture in faces.pictures[:PORTRAITS]]
    prompt = prompts.chat(vlm.processor, QUESTIONS[0], 1)
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
        requests.append({"prompt": prompt, "picture": str(tmp_path / f"{number}.png")})

    def answers(model):
        ids = stock(model, requests, tmp_path)
        return [text.strip() for text in vlm.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)]

    asked = [QUESTIONS[0]] * PORTRAITS, [[picture] for picture in pictures]
    unsteered = vlm.answer(*asked, max_new_tokens=4)
    with steerer.attach(vlm, 1.0):
        steered = vlm.answer(*asked, max_new_tokens=4)
    assert sum(one != other for one, other in zip(unsteered, steered, strict=True)) > PORTRAITS // 4, (
        "or it shows little"
    )
    assert answers(made.folder) == steered
    assert answers(base) == unsteered
