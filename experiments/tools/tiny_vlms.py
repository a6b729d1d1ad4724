"""Tiny random models of the classes of transformers, with their own processors: what docs/families.md is proved on.

A config is the class's default one, shrunk field by field; where a class needs more, `RECIPES` says it. A picture of
64 x 64 pixels is 4 x 4 image tokens for most. There is no network: the tokenizer has whole words and the special
tokens that a processor asks for.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]

from ggss.models import Vlm, prompts
from ggss.models.processors import processor_class, torchvision_needed
from ggss.models.sites import image_encoder

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
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": (SIDE // PATCH * 2) ** 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
    "sliding_window": 4096,
    "mm_tokens_per_image": 16,
    "image_seq_length": 16,
    # Encoders of sound, and encoder-decoders.
    "d_model": WIDTH,
    "d_ff": 2 * WIDTH,
    "d_kv": WIDTH // HEADS,
    "num_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
}


@dataclass(frozen=True)
class Recipe:
    """What a class needs besides the smaller fields. Functions get the tokenizer."""

    config: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    """Further fields of the config; nested ones are merged."""
    special: Mapping[str, str] = field(default_factory=dict)
    """Name -> special token, which the tokenizer has as an attribute of this name; "": it has none of the name."""
    images: Mapping[str, Any] = field(default_factory=dict)
    """Options of the image processor."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """Options of the processor."""
    image_class: str = ""
    """The image processor, where transformers does not name one for the class."""
    processor_class: str = ""
    """The processor, where transformers does not name one for the class; its checkpoints do."""
    feature_extractor: str = ""
    """What a processor that also takes sound needs for that."""
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
    from experiments.tools.tiny_recipes import RECIPES
    from experiments.tools.tiny_recipes_found import FOUND

    recipe = (RECIPES | FOUND).get(kind, Recipe())
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
    if isinstance(names, dict) and "pil" not in names and not recipe.image_class:
        raise torchvision_needed(kind)
    try:
        words, config, processor = _described(kind, recipe)
    except LookupError:  # without a processor; but a class that has no image tokens is refused whatever it has
        if not hasattr(getattr(hf, CLASSES[kind]), "get_image_features"):
            image_encoder(_meta(kind, tiny_config(kind, tokenizer({"image_token": "<image>"}), recipe)))
        raise
    weights = sum(weight.numel() for weight in _meta(kind, config).parameters())
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
    return Vlm(model, processor, kind)


def written(vlm: Vlm, question: str) -> str:
    """A question about one image, as the model's own processor wants it: PaliGemma's adds what stands around it."""
    return f"<image>{question}" if vlm.name == "paligemma" else prompts.chat(vlm.processor, question, 1)


def _meta(kind: str, config: Any) -> Any:
    with torch.device("meta"):
        return getattr(hf, CLASSES[kind])(config)


def _described(kind: str, recipe: Recipe) -> tuple[Any, Any, Any]:
    """Tokenizer, config and processor. The tokenizer gets the special tokens that the processor asks it for."""
    special = {"image_token": "<image>", "video_token": "<video>", "image": "<image>"} | dict(recipe.special)
    special = {name: token for name, token in special.items() if token}
    while True:
        words = tokenizer(special)
        config = tiny_config(kind, words, recipe)
        try:
            return words, config, tiny_processor(kind, config, words, recipe)
        except (AttributeError, ValueError) as error:
            asked = re.search(r"attribute '?(\w+_token)(_id)?\b", str(error))
            if asked is None or asked[1] in special:
                raise
            special[asked[1]] = f"<{asked[1]}>"


def tiny_config(kind: str, words: Any, recipe: Recipe) -> Any:
    """The class's default config with smaller fields."""
    cls = CONFIG_MAPPING[kind]
    image = words.convert_tokens_to_ids(getattr(words, "image_token", "<image>"))
    ids = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    ids |= {"image_token_id": image, "image_token_index": image, "vocab_size": len(words)}
    small = _shrunk(cls().to_dict(), SMALL | ids)
    if "image_token_id" in small:  # it may have no default
        small["image_token_id"] = image
    return cls(**_merged(small, recipe.config(words)))


def tiny_processor(kind: str, config: Any, words: Any, recipe: Recipe) -> Any:
    """The class's own processor, without torchvision."""
    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
    name = recipe.image_class or (names.get("pil") if isinstance(names, dict) else names)
    own = recipe.processor_class or PROCESSOR_MAPPING_NAMES.get(kind)
    if name is None or own is None:
        raise LookupError(f"transformers names no processor for {kind}")
    images = _tiny_images(getattr(hf, name), recipe.images)
    template = TEMPLATE.replace("IMAGE", repr(recipe.image))
    make = processor_class(config, own) or getattr(hf, own)
    parts = {"image_processor": images, "tokenizer": words, "qformer_tokenizer": words, "video_processor": None}
    parts |= {"feature_extractor": getattr(hf, recipe.feature_extractor)()} if recipe.feature_extractor else {}
    asked = inspect.signature(make.__init__).parameters
    processor = make(**{name: part for name, part in parts.items() if name in asked}, **recipe.processor)
    processor.chat_template = template
    return processor


def _tiny_images(make: Any, options: Mapping[str, Any]) -> Any:
    """The image processor with images of the tiny models' size, in the words in which its class gives sizes."""
    size, given = getattr(make, "size", None) or {}, dict(options)
    patch = getattr(make, "patch_size", None)
    if "height" in size:
        given = {"size": {"height": SIDE, "width": SIDE}} | given
    elif "longest_edge" in size and isinstance(patch, int):  # numbers of pixels, not sides
        given = {"size": {"shortest_edge": PATCH**2, "longest_edge": 4 * SIDE**2}, "patch_size": PATCH} | given
    elif getattr(make, "crop_size", None):
        given = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}} | given
    return make(**given)


def _shrunk(config: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    depth = next((config[name] for name in ("num_hidden_layers", "depth") if config.get(name)), None)
    changed = {}
    for name, value in config.items():
        if name == "per_layer_config":  # which follows from other fields
            continue
        if isinstance(value, Mapping) and (name.endswith("config") or "model_type" in value):
            changed[name] = _shrunk(value, small)
        elif isinstance(value, list | tuple) and len(value) == depth:  # one entry for each layer
            changed[name] = [value[0], value[-1]]
        elif isinstance(value, list | tuple) and isinstance(small.get(name), int):
            changed[name] = [small[name]] * len(value)
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
