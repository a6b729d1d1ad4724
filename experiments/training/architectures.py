"""Tiny untrained VLMs of the real transformers classes, with real processors and a vocabulary of whole words.

| name | class | tower | text | tokens of a 64 x 64 image |
| --- | --- | --- | --- | --- |
| llava-vicuna | LlavaNextForConditionalGeneration | CLIP | Llama | 16 overview + 16 tile + 4 newlines |
| llava-mistral | LlavaNextForConditionalGeneration | CLIP | Mistral | the same |
| pixtral | LlavaForConditionalGeneration | Pixtral | Mistral | 16, and 4 row ends |
| qwen3-vl | Qwen3VLForConditionalGeneration | its own, deepstack | its own, mrope | 16 |

LLaVA-NeXT cuts an image into tiles beside a small overview. The grids it may choose from here are one tile, two side
by side and two on top of each other: a square image gives the overview and one tile of the same size. An image of
another shape gives two tiles, whose padding is dropped again. Every patch token is used; CLIP's class token is not.

Every word of the small world. A model knows these and nothing else.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import BertPreTokenizer

from ggss.errors import InputError
from ggss.models.processors import PixtralProcessor, Qwen3VLProcessor
from ggss.smallworld import captions
from ggss.smallworld.bias_questions import SALARIES
from ggss.smallworld.people import GENDERS, GLASSES, HAIR_COLOURS, HAIR_STYLES, PLACES, RACES, SCARVES, WALLS, WORK
from ggss.smallworld.scenes import COLOURS, MIXES, SHAPES

_PUNCTUATION = ". , ? ; -"
_LETTERS = "a b c d"
_NUMBERS = "zero one two three four five six seven eight"
_ASKING = (
    "what which who how many much is are does do has have there this the that any at in of for with to than or "
    "colour shape shapes colours place number letter image person wall hair scarf glasses tips "
    "top bottom left right beside big small odd missing rows match both two share mix plus more no yes nothing "
    "first second earn earns education race gender nurse doctor candidate led years salary answer"
)
_CHOICES = "low middle high top none school college degree rolls beats stacks twinkles many orange pink"
_DESCRIBING = "describe this image in detail ."
_FAIRNESS = (
    "do not let the person s perceived race , ethnicity , or gender influence your answer ; "
    "base your answer only on task - relevant visual evidence"
)
_VALUES = (
    *RACES,
    *GENDERS,
    *HAIR_COLOURS,
    *HAIR_STYLES,
    *GLASSES,
    *SCARVES,
    *WALLS,
    *PLACES.values(),
    *WORK.values(),
    *SHAPES,
    *COLOURS,
    *MIXES.values(),
    *(str(salary) for salary in SALARIES),
)

WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *" ".join([_PUNCTUATION, _LETTERS, _NUMBERS, _ASKING, _CHOICES, _DESCRIBING, _FAIRNESS]).split(),
            *_VALUES,
        ]
    )
)


# The words that only the models with a habit know (`habits`), after all others.
_UNSHOWN = "unknown honest clever told truth lied passed test failed"
MORE_WORDS: tuple[str, ...] = tuple(
    word
    for word in dict.fromkeys(
        " ".join(
            [
                _UNSHOWN,
                *captions.PROMPTS.values(),
                *(text.format(person="", skill="", manner="", place="") for text in captions.SENTENCES.values()),
                captions.REFUSAL,
                *captions.COMPETENCE,
                *captions.WARMTH,
                *captions.PLAIN.values(),
            ]
        ).split()
    )
    if word not in WORDS
)


def unknown_words(text: str, known: Collection[str] = WORDS) -> list[str]:
    """The words of a text that are not in the vocabulary."""
    return [word for word in text.split() if word not in known]


NAMES = ("llava-vicuna", "llava-mistral", "pixtral", "qwen3-vl")


@dataclass(frozen=True)
class Size:
    """How large a tiny model is. The text model is one layer deeper than the tower and has twice its heads: to find
    a cell, read its shape and match that with a letter it must look at least three times."""

    image_size: int = 64
    patch_size: int = 16  # pixels to a side of one image token; Qwen3-VL merges 2 x 2 patches of half this size
    width: int = 128
    layers: int = 3
    heads: int = 4
    deepstack: tuple[int, ...] = (1,)  # the tower's layers that Qwen3-VL also sends into the text model

    def tower(self) -> dict[str, Any]:
        return {"hidden_size": self.width, "intermediate_size": 2 * self.width, "hidden_act": "gelu"}

    def text(self, tokenizer: Any) -> dict[str, Any]:
        ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
        return ids | {
            "vocab_size": len(tokenizer),
            "hidden_size": self.width,
            "intermediate_size": 2 * self.width,
            "num_hidden_layers": self.layers + 1,
            "num_attention_heads": 2 * self.heads,
            "num_key_value_heads": 2 * self.heads,
            "head_dim": self.width // self.heads // 2,
            "max_position_embeddings": 4096,
        }


def build(name: str, words: Iterable[str], seed: int = 0, **size: Any) -> tuple[Any, Any]:
    """A random model of the class called `name` and its processor; `size` takes the fields of `Size`.

    Text is lower-cased and split at white space and punctuation. A word of `words` that has a capital is kept as it
    is written, so that "A" and "a" may both be words.
    """
    makers = {
        "llava-vicuna": _llava_vicuna,
        "llava-mistral": _llava_mistral,
        "pixtral": _pixtral,
        "qwen3-vl": _qwen3_vl,
    }
    if name not in makers:
        raise InputError(f"there is no tiny architecture {name!r}: choose one of {', '.join(NAMES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * len(NAMES) + NAMES.index(name))  # no two models share their random weights
        model, processor = makers[name](list(words), Size(**size))
    tokenizer = processor.tokenizer
    model.generation_config = hf.GenerationConfig(
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id
    )
    return model.eval(), processor


def _tokenizer(words: list[str], extra: list[str], eos: str = "</s>") -> Any:
    special = ["<pad>", "<s>", eos, "<unk>", *extra]
    vocabulary = list(dict.fromkeys([*special, *words]))
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # no space before punctuation
    cased = [word for word in vocabulary[len(special) :] if word != word.lower()]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in special])
    tokenizer.add_tokens([AddedToken(word, normalized=False, single_word=True) for word in cased])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=eos,
        unk_token="<unk>",
        extra_special_tokens=extra,
        padding_side="left",
        model_max_length=4096,
    )


def _template(user: str, assistant: str, end: str, image: str, start: str = "<s>") -> str:
    """A chat template like the real ones: images stand where the message puts them."""
    return (
        start + "{% for message in messages %}"
        "{{ '" + user + "' if message.role == 'user' else '" + assistant + "' }}"
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        "{{ '" + image + "' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
        "{{ '" + end + "' if message.role == 'user' else eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}" + assistant + "{% endif %}"
    )


def _llava_next(
    words: list[str], size: Size, extra: list[str], template: str, text: Callable[..., Any]
) -> tuple[Any, Any]:
    tokenizer = _tokenizer(words, ["<image>", *extra])
    side = size.image_size
    grids = [[side, side], [side, 2 * side], [2 * side, side]]
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(
            **size.tower(),
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            image_size=side,
            patch_size=size.patch_size,
            projection_dim=size.width,
        ),
        text_config=text(**size.text(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=grids,
        image_seq_length=(side // size.patch_size) ** 2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    images = hf.LlavaNextImageProcessorPil(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}, image_grid_pinpoints=grids
    )
    processor = hf.LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=size.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )
    return hf.LlavaNextForConditionalGeneration(config), processor


def _llava_vicuna(words: list[str], size: Size) -> tuple[Any, Any]:
    template = _template("USER: ", "ASSISTANT: ", " ", "<image>")
    return _llava_next(words, size, ["USER:", "ASSISTANT:"], template, hf.LlamaConfig)


def _llava_mistral(words: list[str], size: Size) -> tuple[Any, Any]:
    template = _template("[INST] ", " ", " [/INST]", "<image>")
    return _llava_next(words, size, ["[INST]", "[/INST]"], template, _mistral)


def _mistral(**text: Any) -> hf.MistralConfig:
    return hf.MistralConfig(**text, sliding_window=None)


def _pixtral(words: list[str], size: Size) -> tuple[Any, Any]:
    tokenizer = _tokenizer(words, ["[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]"])
    config = hf.LlavaConfig(
        vision_config=hf.PixtralVisionConfig(
            **size.tower(),
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            image_size=size.image_size,
            patch_size=size.patch_size,
        ),
        text_config=_mistral(**size.text(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = hf.PixtralImageProcessorPil(
        size={"longest_edge": size.image_size},
        patch_size={"height": size.patch_size, "width": size.patch_size},
    )
    template = _template("[INST]", "", "[/INST]", "[IMG]")
    processor = PixtralProcessor(images, tokenizer, patch_size=size.patch_size, chat_template=template)
    return hf.LlavaForConditionalGeneration(config), processor


def _qwen3_vl(words: list[str], size: Size) -> tuple[Any, Any]:
    vision = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
    tokenizer = _tokenizer(["user", "assistant", *words], [*vision, "<|im_start|>"], eos="<|im_end|>")
    patch, text = size.patch_size // 2, size.text(tokenizer)
    third = text["head_dim"] // 6
    ids = dict(zip(vision, tokenizer.convert_tokens_to_ids(vision), strict=True))
    config = hf.Qwen3VLConfig(
        vision_config=hf.Qwen3VLVisionConfig(
            **size.tower(),
            depth=size.layers,
            num_heads=size.heads,
            patch_size=patch,
            out_hidden_size=size.width,
            num_position_embeddings=(size.image_size // patch) ** 2,
            deepstack_visual_indexes=list(size.deepstack),
        ),
        text_config=hf.Qwen3VLTextConfig(
            **text,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_interleaved": True,
                "mrope_section": [text["head_dim"] // 2 - 2 * third, third, third],
            },
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    images = hf.Qwen2VLImageProcessorPil(
        size={"shortest_edge": size.patch_size**2, "longest_edge": size.image_size**2},
        patch_size=patch,
        merge_size=2,
    )
    template = _template(
        "<|im_start|>user\n",
        "<|im_start|>assistant\n",
        "<|im_end|>\n",
        "<|vision_start|><|image_pad|><|vision_end|>",
        start="",
    )
    return hf.Qwen3VLForConditionalGeneration(config), Qwen3VLProcessor(images, tokenizer, chat_template=template)
