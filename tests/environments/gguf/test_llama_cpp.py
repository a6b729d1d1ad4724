"""A rewritten mmproj in llama.cpp's server: the text model's file is untouched, the answers are the steered ones."""

import base64
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import xllamacpp

import ggss
import gguf
import small_gguf
from ggss import InputError
from ggss.cli.arguments import one_thread
from ggss.models import locate, prompts

QUESTION = "which race is this person ?"
PORTRAITS = 40


@contextmanager
def served(text: Path, mmproj: Path) -> Iterator[str]:
    """The address of a server on this machine's loopback, with a text model and a projector."""
    params = xllamacpp.CommonParams()
    params.model.path, params.mmproj.path = str(text), str(mmproj)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = 512, 1, 0, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    assert server.listening_address.startswith("http://127.0.0.1:")
    yield server.listening_address
    del server


def fetched(address: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(address, data, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)


def asked(address: str, vlm: ggss.Vlm, source: Path, pictures: list) -> list[str]:
    """The server's answers to a question about each picture."""
    marker = fetched(f"{address}/props")["media_marker"]
    words = small_gguf.spelled(source)
    (ids,) = prompts.tokens(
        vlm.processor, [prompts.chat(vlm.processor, QUESTION, 1)], [prompts.image_mark(vlm.processor)]
    )
    tokens = [words[i] for i in ids]
    around = {"<|vision_start|>", "<|vision_end|>", "[IMG_BREAK]", "[IMG_END]"}  # llama.cpp puts them around an image
    image = vlm.processor.image_token
    prompt = "".join(marker if token == image else token for token in tokens if token not in around)
    assert prompt.count(marker) == 1
    answers = []
    for picture in pictures:
        file = io.BytesIO()
        picture.save(file, "PNG")
        shown = {"prompt_string": prompt, "multimodal_data": [base64.b64encode(file.getvalue()).decode()]}
        body = {"prompt": shown, "n_predict": 4, "temperature": 0, "cache_prompt": False}
        answers.append(fetched(f"{address}/completion", body)["content"].strip())
    return answers


@pytest.mark.parametrize(("name", "sites"), [("pixtral", "projection-mlp2"), ("qwen3-vl", "all")])
def test_llama_cpp_answers_as_the_live_steerer(name, sites, tmp_path):
    one_thread()
    source = Path(locate(f"small-world/{name}"))
    vlm = ggss.load_vlm(f"small-world/{name}")
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook"})
    acts = ggss.collect(vlm, faces, sites, keep_tokens=True, cache=tmp_path / "cache", show=False)
    steerer = ggss.fit("pace", acts, attribute="race")
    text, mmproj = small_gguf.write(source, tmp_path / "unsteered")
    before = text.read_bytes()
    made = ggss.export(
        f"small-world/{name}", {"race": steerer}, 1.0, tmp_path / "steered", form="mmproj", mmproj=mmproj
    )
    rewritten = made.folder / "mmproj.gguf"

    pictures = [picture.image() for picture in faces.pictures[:PORTRAITS]]
    questions = [QUESTION] * PORTRAITS
    unsteered = vlm.answer(questions, [[own] for own in pictures], max_new_tokens=4)
    with steerer.attach(vlm, 1.0):
        steered = vlm.answer(questions, [[own] for own in pictures], max_new_tokens=4)
    assert sum(one != other for one, other in zip(unsteered, steered, strict=True)) > PORTRAITS // 4, (
        "or it shows little"
    )
    with served(text, mmproj) as address:
        assert asked(address, vlm, source, pictures) == unsteered
    with served(text, rewritten) as address:
        assert asked(address, vlm, source, pictures) == steered
    assert text.read_bytes() == before

    old, new = ({own.name: own.data for own in gguf.GGUFReader(file).tensors} for file in (mmproj, rewritten))
    assert {own for own in old if not np.array_equal(old[own], new[own])} == made.record["tensors"].keys()

    converted = {own.name: own.data for own in gguf.GGUFReader(_float32(tmp_path, vlm, steerer)).tensors}
    for own in made.record["tensors"]:
        np.testing.assert_allclose(new[own], converted[own], rtol=0, atol=1e-6)


def _float32(folder: Path, vlm: ggss.Vlm, steerer: ggss.Steerer) -> Path:
    """The mmproj that is converted from an exported checkpoint in float32."""
    vlm.model.save_pretrained(folder / "wide", save_original_format=True)
    source = Path(locate(vlm.name))
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (folder / "wide" / file.name).write_bytes(file.read_bytes())
    made = ggss.export(folder / "wide", {"race": steerer}, 1.0, folder / "wide-steered")
    return small_gguf.write(made.folder, folder / "converted")[1]


@pytest.fixture(scope="module")
def pixtral(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pixtral")
    vlm = ggss.load_vlm("small-world/pixtral")
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook", "identity": ["00", "01", "02"]})
    acts = ggss.collect(vlm, faces, keep_tokens=True, cache=folder / "cache", show=False)
    return ggss.fit("pace", acts, attribute="race"), small_gguf.write(Path(locate(vlm.name)), folder / "gguf")


def rewritten_with(mmproj: Path, target: Path, change) -> Path:
    """A copy of an mmproj with only its tensors, each as `change(name, data)` gives it: (data, type)."""
    writer = gguf.GGUFWriter(target, "clip")
    for own in gguf.GGUFReader(mmproj).tensors:
        data, kind = change(own.name, np.array(own.data))
        writer.add_tensor(own.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_a_quantised_projector_is_refused(pixtral, tmp_path):
    steerer, (_, mmproj) = pixtral
    packed = gguf.GGMLQuantizationType.Q8_0

    def change(name, data):
        return (gguf.quantize(data, packed), packed) if name == "mm.2.weight" else (data, None)

    small = rewritten_with(mmproj, tmp_path / "q8.gguf", change)
    with pytest.raises(InputError, match=r"mm.2.weight \(Q8_0\).*again, in f16 or f32"):
        ggss.export("small-world/pixtral", {"race": steerer}, 1.0, tmp_path / "out", form="mmproj", mmproj=small)
    assert not (tmp_path / "out").exists()


def test_a_projector_in_half_precision_is_rewritten_in_it(pixtral, tmp_path):
    steerer, (_, mmproj) = pixtral
    half = rewritten_with(
        mmproj, tmp_path / "half.gguf", lambda name, data: (data.astype(np.float16) if data.ndim == 2 else data, None)
    )
    made = ggss.export("small-world/pixtral", {"race": steerer}, 1.0, tmp_path / "out", form="mmproj", mmproj=half)
    assert {name: own["dtype"] for name, own in made.record["tensors"].items()} == {
        "mm.2.weight": "float16",
        "mm.2.bias": "float32",
    }


def test_the_mmproj_of_another_model_is_refused(pixtral, tmp_path):
    steerer, (text, mmproj) = pixtral
    other = rewritten_with(mmproj, tmp_path / "other.gguf", lambda name, data: (data * 1.1, None))
    for wrong, message in ((other, "has no tensor with the numbers of"), (text, "has no tensor with the numbers of")):
        with pytest.raises(InputError, match=message):
            ggss.export("small-world/pixtral", {"race": steerer}, 1.0, tmp_path / "out", form="mmproj", mmproj=wrong)
    (tmp_path / "no.gguf").write_bytes(b"not this")
    with pytest.raises(InputError, match="is no GGUF file"):
        ggss.export(
            "small-world/pixtral",
            {"race": steerer},
            1.0,
            tmp_path / "out",
            form="mmproj",
            mmproj=tmp_path / "no.gguf",
        )
