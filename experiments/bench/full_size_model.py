"""Models with random weights in the dimensions of real ones, and pictures to ask them about (see `full_size`).

    python -m experiments.bench.full_size_model 4b DIR      saves the model in DIR/model

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

from experiments.training.architectures import build
from ggss.data.manifests import write_manifest

WORDS = [*"ABCD", "first", "second", "nurse", "doctor", "yes", "no", "the", "person", "in", "this", "picture"]
TOKENS = ("vision_start", "image_pad", "vision_end", "video_pad")


@dataclass(frozen=True)
class Qwen3VL:
    """The dimensions of a Qwen3-VL."""

    title: str
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

    @property
    def told(self) -> str:
        return (
            f"{self.layers} layers of {self.hidden}, a vision tower of {self.vision_layers} x {self.vision_hidden}, "
            f"deepstack at {', '.join(map(str, self.deepstack))}"
        )

    def processor(self) -> Any:
        _, made = build("qwen3-vl", WORDS, width=64, layers=1, deepstack=(0,))
        made.image_processor.patch_size = 16
        made.image_processor.size = dict(zip(("shortest_edge", "longest_edge"), self.pixels, strict=True))
        return made

    def model(self, tokenizer: Any) -> Any:
        """Without weights, if it is made on the device `meta`."""
        ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in TOKENS}
        config = hf.Qwen3VLConfig(
            vision_config=hf.Qwen3VLVisionConfig(
                hidden_size=self.vision_hidden,
                depth=self.vision_layers,
                num_heads=self.vision_heads,
                intermediate_size=self.vision_intermediate,
                out_hidden_size=self.hidden,
                deepstack_visual_indexes=list(self.deepstack),
            ),
            text_config=hf.Qwen3VLTextConfig(
                vocab_size=self.vocabulary,
                hidden_size=self.hidden,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.key_value_heads,
                head_dim=self.head,
                intermediate_size=self.intermediate,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 5_000_000.0,
                    "mrope_interleaved": True,
                    "mrope_section": [self.head // 2 - 2 * (self.head // 6), self.head // 6, self.head // 6],
                },
            ),
            image_token_id=ids["image_pad"],
            video_token_id=ids["video_pad"],
            vision_start_token_id=ids["vision_start"],
            vision_end_token_id=ids["vision_end"],
            dtype="bfloat16",
        )
        return hf.Qwen3VLForConditionalGeneration(config)


@dataclass(frozen=True)
class LlavaNext:
    """The dimensions of a LLaVA-NeXT with a Llama. A picture is cut into tiles as large as the tower's input."""

    title: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_intermediate: int
    patch: int
    side: int  # of a tile, and of the pictures that are asked about

    @property
    def told(self) -> str:
        return (
            f"{self.layers} layers of {self.hidden}, a vision tower of {self.vision_layers} x {self.vision_hidden}, "
            f"tiles of {self.side} x {self.side} pixels"
        )

    @property
    def grids(self) -> list[list[int]]:
        return [[rows * self.side, columns * self.side] for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))]

    def processor(self) -> Any:
        _, made = build("llava-vicuna", WORDS, width=64, layers=1, image_size=self.side, patch_size=self.patch)
        made.image_processor.image_grid_pinpoints = self.grids
        return made

    def model(self, tokenizer: Any) -> Any:
        """Without weights, if it is made on the device `meta`."""
        config = hf.LlavaNextConfig(
            vision_config=hf.CLIPVisionConfig(
                hidden_size=self.vision_hidden,
                num_hidden_layers=self.vision_layers,
                num_attention_heads=self.vision_heads,
                intermediate_size=self.vision_intermediate,
                image_size=self.side,
                patch_size=self.patch,
            ),
            text_config=hf.LlamaConfig(
                vocab_size=self.vocabulary,
                hidden_size=self.hidden,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.heads,
                intermediate_size=self.intermediate,
                max_position_embeddings=4096,
            ),
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_grid_pinpoints=self.grids,
            image_seq_length=(self.side // self.patch) ** 2,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            dtype="bfloat16",
        )
        return hf.LlavaNextForConditionalGeneration(config)


Dimensions = Qwen3VL | LlavaNext

SIZES: dict[str, Dimensions] = {
    "4b": Qwen3VL(
        "Qwen3-VL-4B",
        *(2560, 36, 32, 8, 128, 9728, 151_936),
        *(1024, 24, 16, 4096, (5, 11, 17), (256 * 256, 4096 * 4096), 256),
    ),
    "llava-7b": LlavaNext(
        "LLaVA-NeXT-7B",
        *(4096, 32, 32, 11_008, 32_064),
        *(1024, 24, 16, 4096, 14, 336),
    ),
    "tiny": Qwen3VL(
        "tiny Qwen3-VL", *(64, 2, 4, 2, 16, 128, 512), *(64, 3, 4, 128, (0, 1), (64 * 64, 128 * 128), 128)
    ),
    "tiny-llava": LlavaNext("tiny LLaVA-NeXT", *(64, 2, 4, 128, 512), *(64, 3, 4, 128, 16, 64)),
}


def saved(size: Dimensions, folder: Path) -> None:
    """Save a random model in bfloat16, with a processor."""
    processor = size.processor()
    filled(size, processor.tokenizer).save_pretrained(folder, max_shard_size="2GB")
    processor.save_pretrained(folder)


@torch.no_grad()
def filled(size: Dimensions, tokenizer: Any) -> Any:
    """The model with random weights, made in bfloat16 from the start: there is never a copy in float32."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = size.model(tokenizer)
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


def pictures(folder: Path, side: int, identities: int = 2) -> Path:
    """Pictures of noise: so many people in each of two occupations, of two races. Their manifest."""
    rows = []
    people = product(("cook", "ceo"), map(str, range(1, identities + 1)), ("Asian", "Black"))
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
