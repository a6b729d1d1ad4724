"""A Qwen3-VL with random weights in the dimensions of a real one, and pictures to ask it about (see `full_size`).

    python -m bench.full_size_model 4b DIR      saves the model in DIR/model

The weights are random, so the answers mean nothing; their number, shapes and dtype are the real ones. The processor
is the small world's with the real size of patches and the real limits of a picture's size; its vocabulary of some
words is padded to the real one.
"""

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image

from ggss.data.manifests import write_manifest
from ggss.smallworld.architectures import build

WORDS = [*"ABCD", "first", "second", "nurse", "doctor", "yes", "no", "the", "person", "in", "this", "picture"]
TOKENS = ("vision_start", "image_pad", "vision_end", "video_pad")


@dataclass(frozen=True)
class Dimensions:
    """Of a Qwen3-VL."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int
    intermediate: int
    vocabulary: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_intermediate: int
    deepstack: tuple[int, ...]
    pixels: tuple[int, int]  # fewer and more are not: the processor makes a picture larger or smaller
    side: int  # of the pictures that are asked about


SIZES = {
    "4b": Dimensions(
        2560, 36, 32, 8, 128, 9728, 151_936, 1024, 24, 16, 4096, (5, 11, 17), (256 * 256, 4096 * 4096), 256
    ),
    "tiny": Dimensions(64, 2, 4, 2, 16, 128, 512, 64, 3, 4, 128, (0, 1), (64 * 64, 128 * 128), 128),
}


def saved(size: Dimensions, folder: Path) -> None:
    """Save a random model in bfloat16, with a processor."""
    _, processor = build("qwen3-vl", WORDS, width=64, layers=1, deepstack=(0,))
    processor.image_processor.patch_size = 16
    processor.image_processor.size = dict(zip(("shortest_edge", "longest_edge"), size.pixels, strict=True))
    model = filled(configured(size, processor.tokenizer))
    model.save_pretrained(folder, max_shard_size="2GB")
    processor.save_pretrained(folder)


def configured(size: Dimensions, tokenizer: Any) -> Any:
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in TOKENS}
    return hf.Qwen3VLConfig(
        vision_config=hf.Qwen3VLVisionConfig(
            hidden_size=size.vision_hidden,
            depth=size.vision_layers,
            num_heads=size.vision_heads,
            intermediate_size=size.vision_intermediate,
            out_hidden_size=size.hidden,
            deepstack_visual_indexes=list(size.deepstack),
        ),
        text_config=hf.Qwen3VLTextConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.key_value_heads,
            head_dim=size.head,
            intermediate_size=size.intermediate,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 5_000_000.0,
                "mrope_interleaved": True,
                "mrope_section": [size.head // 2 - 2 * (size.head // 6), size.head // 6, size.head // 6],
            },
        ),
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        dtype="bfloat16",
    )


@torch.no_grad()
def filled(config: Any) -> Any:
    """The model with random weights, made in bfloat16 from the start: there is never a copy in float32."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = hf.Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(usual)
    model.to_empty(device="cpu")  # buffers, such as the frequencies of positions, are not saved: loading makes them
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
    model.generation_config = hf.GenerationConfig(pad_token_id=0, eos_token_id=2)
    return model


def pictures(folder: Path, side: int) -> Path:
    """Eight pictures of noise: two people in each of two occupations, of two races. Their manifest."""
    rows = []
    people = product(("cook", "ceo"), ("1", "2"), ("Asian", "Black"))
    folder.mkdir(exist_ok=True)
    for number, (occupation, identity, race) in enumerate(people):
        path = folder / f"{number}.png"
        Image.effect_noise((side // 8, side // 8), 60 + number).convert("RGB").resize((side, side)).save(path)
        labels = {"occupation": occupation, "identity": identity, "race": race}
        rows.append({"path": path.name, **labels})
    write_manifest(rows, folder / "faces.csv")
    return folder / "faces.csv"


if __name__ == "__main__":
    saved(SIZES[sys.argv[1]], Path(sys.argv[2]) / "model")
