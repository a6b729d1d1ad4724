"""Tiny random models of the classes of transformers, with their own processors: what docs/families.md is proved on.

A config is the class's default one, shrunk field by field; where a class needs more, `RECIPES` says it. A picture of
64 x 64 pixels is 4 x 4 image tokens for most. There is no network: the tokenizer has whole words and the special
tokens that a processor asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from ggss.errors import InputError
from ggss.models import Vlm
from ggss.models.processors import processor_class

TEXT = "the person in this picture is a nurse or doctor describe image detail yes no red blue . , ? : A B"
WORDS = TEXT.split()
CLASSES = dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
LIMIT = 30_000_000
SIDE, PATCH, WIDTH, LAYERS, HEADS = 64, 16, 32, 2, 4

TEMPLATE = (
    "{% for message in messages %}{{ message.role + ' : ' }}{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ IMAGE if part.type == 'image' else part.text }}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"
)

# Applied at every depth of a config, to the fields that are there.
SMALL: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "max_position_embeddings": 4096,
    "depth": LAYERS,
    "num_heads": HEADS,
    "embed_dim": WIDTH,
    "out_hidden_size": WIDTH,
    "projection_dim": WIDTH,
    "image_size": SIDE,
    "patch_size": PATCH,
    "layer_types": None,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": (SIDE // PATCH * 2) ** 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
    "sliding_window": None,
    "mm_tokens_per_image": 16,
    "image_seq_length": 16,
}


@dataclass(frozen=True)
class Recipe:
    """What a class needs besides the smaller fields. Functions get the tokenizer."""

    config: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    """Further fields of the config; nested ones are merged."""
    special: Mapping[str, str] = field(default_factory=dict)
    """Name -> special token, which the tokenizer has as an attribute of this name."""
    images: Mapping[str, Any] = field(default_factory=dict)
    """Options of the image processor."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """Options of the processor."""
    image_class: str = ""
    """The image processor, where transformers does not name one for the class."""
    image: str = "<image>"
    """What the chat template writes for an image."""


def tokenizer(special: Mapping[str, str]) -> Any:
    """Whole words, the usual special tokens and these."""
    first = ["<pad>", "<s>", "</s>", "<unk>", *dict.fromkeys(special.values())]
    words = Tokenizer(WordLevel({word: i for i, word in enumerate([*first, *WORDS])}, unk_token="<unk>"))
    words.pre_tokenizer = BertPreTokenizer()
    words.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in first])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=words, **names, extra_special_tokens=dict(special), padding_side="left"
    )


def build(kind: str, seed: int = 0) -> Vlm:
    """A tiny model of the class that has this `model_type`, with its processor."""
    from tools.tiny_recipes import RECIPES

    recipe = RECIPES.get(kind, Recipe())
    words = tokenizer({"image_token": "<image>", "video_token": "<video>"} | dict(recipe.special))
    config = tiny_config(kind, words, recipe)
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in getattr(hf, CLASSES[kind])(config).parameters())
    if weights > LIMIT:
        raise ValueError(f"its smallest model has {weights:,} weights, more than {LIMIT:,}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(hf, CLASSES[kind])(config).eval()
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():  # Gemma 3's projector begins as zeros
                torch.nn.init.normal_(weight, std=0.02)
    ids = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    model.generation_config = hf.GenerationConfig(**ids)
    return Vlm(model, tiny_processor(kind, config, words, recipe), kind)


def tiny_config(kind: str, words: Any, recipe: Recipe) -> Any:
    """The class's default config with smaller fields."""
    cls = CONFIG_MAPPING[kind]
    image = words.convert_tokens_to_ids(words.image_token)
    ids = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    ids |= {"image_token_id": image, "image_token_index": image, "vocab_size": len(words)}
    return cls(**_merged(_shrunk(cls().to_dict(), SMALL | ids), recipe.config(words)))


def tiny_processor(kind: str, config: Any, words: Any, recipe: Recipe) -> Any:
    """The class's own processor, without torchvision."""
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
    name = recipe.image_class or (names.get("pil") if isinstance(names, dict) else names)
    if name is None and isinstance(names, dict):
        raise InputError(f"the image processor of {kind} models is there for torchvision only")
    if name is None or kind not in PROCESSOR_MAPPING_NAMES:
        raise LookupError(f"transformers names no processor for {kind}")
    images = getattr(hf, name)(**recipe.images)
    make = processor_class(config) or getattr(hf, PROCESSOR_MAPPING_NAMES[kind])
    template = TEMPLATE.replace("IMAGE", repr(recipe.image))
    processor = make(image_processor=images, tokenizer=words, **recipe.processor)
    processor.chat_template = template
    return processor


def _shrunk(config: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    changed = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and name.endswith("config"):
            changed[name] = _shrunk(value, small)
        elif name in small and value is not None:
            changed[name] = small[name]
        else:
            changed[name] = value
    return changed


def _merged(config: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(config)
    for name, value in more.items():
        nested = isinstance(value, Mapping) and isinstance(both.get(name), Mapping) and "rope" not in name
        both[name] = _merged(both[name], value) if nested else value
    return both
