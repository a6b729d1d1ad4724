"""What a tiny model of each class needs beside smaller fields: tokens, sizes of images, tiles."""

from dataclasses import replace
from typing import Any

from experiments.tools.tiny_vlms import HEADS, PATCH, SIDE, WIDTH, Recipe

SQUARE = {"height": SIDE, "width": SIDE}
GRIDS = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE]]
QWEN = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
PIXELS = {"shortest_edge": PATCH**2, "longest_edge": SIDE**2}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}


LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}


def _clip(**more: Any) -> dict[str, Any]:
    small = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
    }
    return {"model_type": "clip_vision_model", **small, "image_size": SIDE, "patch_size": PATCH, **more}


def qwen_ids(words: Any) -> dict[str, int]:
    ids = {f"{name}_id": words.convert_tokens_to_ids(token) for name, token in QWEN.items()}
    return ids | {"vision_token_id": ids["image_token_id"]}


def _qwen(rope: dict[str, Any] | None = None, vision: dict[str, Any] | None = None, **text: Any) -> Recipe:
    own = {"patch_size": PATCH // 2, **(vision or {})}
    return Recipe(
        config=lambda words: {
            **qwen_ids(words),
            "vision_config": own,
            "text_config": {"rope_parameters": rope or MROPE, **text},
        },
        special=QWEN,
        images={"size": PIXELS, "patch_size": PATCH // 2, "merge_size": 2},
        image_class="Qwen2VLImageProcessorPil",
        image="<|vision_start|><|image_pad|><|vision_end|>",
    )


LLAVA_PROCESSOR = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}
IDEFICS = {"fake": "<fake_token_around_image>", "utterance": "<end_of_utterance>", "whole": "<global-img>"}
PIXTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}

GLM = Recipe(
    lambda words: {
        "image_start_token_id": words.convert_tokens_to_ids("<|begin_of_image|>"),
        "image_end_token_id": words.convert_tokens_to_ids("<|end_of_image|>"),
        "video_token_id": words.convert_tokens_to_ids("<|video|>"),
        "vision_config": {"patch_size": PATCH // 2},
        "text_config": {"rope_parameters": MROPE | {"partial_rotary_factor": 1.0}},
    },
    special={
        "image_token": "<|image|>",
        "video_token": "<|video|>",
        "begin": "<|begin_of_image|>",
        "end": "<|end_of_image|>",
    },
    images={"size": {"shortest_edge": PATCH**2, "longest_edge": 2 * SIDE**2}, "patch_size": PATCH // 2},
    image="<|begin_of_image|><|image|><|end_of_image|>",
)

RECIPES: dict[str, Recipe] = {
    "llava": Recipe(lambda _: {"vision_config": _clip()}, images=CROPPED, processor=LLAVA_PROCESSOR),
    "vipllava": Recipe(
        lambda _: {"vision_config": _clip(), "vision_feature_layers": [-1, -2]},
        images=CROPPED,
        processor=LLAVA_PROCESSOR,
    ),
    "llava_next": Recipe(
        lambda _: {"vision_config": _clip(), "image_grid_pinpoints": GRIDS},
        images=CROPPED | {"image_grid_pinpoints": GRIDS},
        processor=LLAVA_PROCESSOR,
    ),
    "llava_next_video": Recipe(
        lambda _: {"vision_config": _clip(), "image_grid_pinpoints": GRIDS},
        images=CROPPED | {"image_grid_pinpoints": GRIDS},
        processor=LLAVA_PROCESSOR,
    ),
    "llava_onevision": Recipe(
        lambda words: {
            "image_grid_pinpoints": GRIDS,
            "video_token_id": words.convert_tokens_to_ids("<video>"),
            "video_token_index": words.convert_tokens_to_ids("<video>"),
        },
        images={"size": SQUARE, "image_grid_pinpoints": GRIDS},
        processor={"num_image_tokens": (SIDE // PATCH) ** 2, "vision_feature_select_strategy": "full"},
    ),
    "mistral3": Recipe(
        lambda _: {"vision_config": {"patch_size": PATCH // 2}, "spatial_merge_size": 2},
        special=PIXTRAL,
        images={"size": {"longest_edge": SIDE}, "patch_size": {"height": PATCH // 2, "width": PATCH // 2}},
        processor={"patch_size": PATCH // 2, "spatial_merge_size": 2},
        image="[IMG]",
    ),
    "qwen2_vl": _qwen(vision={"hidden_size": WIDTH}),
    "qwen2_5_vl": _qwen(vision={"window_size": PATCH * 2, "fullatt_block_indexes": [1]}),
    "qwen3_vl": _qwen(MROPE | {"mrope_interleaved": True}),
    "qwen3_vl_moe": _qwen(MROPE | {"mrope_interleaved": True}),
    "qwen3_5": _qwen(
        MROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0},
        **LINEAR,
    ),
    "qwen3_5_moe": _qwen(MROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0}, **LINEAR),
    "internvl": Recipe(
        lambda _: {"vision_config": {"image_size": [SIDE, SIDE], "patch_size": [PATCH // 2, PATCH // 2]}},
        special={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "image_token": "<IMG_CONTEXT>",
        },
        images={"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        processor={"image_seq_length": 16},
        image="<IMG_CONTEXT>",
    ),
    "gemma3": Recipe(
        lambda words: {
            "image_token_index": words.convert_tokens_to_ids("<image_soft_token>"),
            "text_config": {"sliding_window": 4096, "query_pre_attn_scalar": 8},
        },
        special={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        images={"size": SQUARE},
        processor={"image_seq_length": 16},
        image="<start_of_image>",
    ),
    "paligemma": Recipe(special={"newline": "\n"}, images={"size": SQUARE, "image_seq_length": 16}),
    "idefics3": Recipe(
        special=IDEFICS,
        images={"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}},
        processor={"image_seq_len": 4},
    ),
    "smolvlm": Recipe(
        special=IDEFICS,
        images={"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}},
        processor={"image_seq_len": 4},
    ),
    "aya_vision": Recipe(
        lambda words: {
            "image_token_index": words.convert_tokens_to_ids("<|IMG_PATCH|>"),
            "text_config": {"sliding_window": 4096},
        },
        special={
            "start": "<|START_OF_IMG|>",
            "end": "<|END_OF_IMG|>",
            "patch": "<|IMG_PATCH|>",
            "line": "<|IMG_LINE_BREAK|>",
            "tile_global": "TILE_GLOBAL",
        },
        images={"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        processor={"patch_size": PATCH, "img_size": SIDE, "downsample_factor": 2},
    ),
    "glm4v": GLM,
    "glm4v_moe": replace(GLM, image_class="Glm4vImageProcessorPil"),
    "glm46v": GLM,
    "janus": Recipe(
        lambda _: {
            "vision_config": {"num_image_tokens": 16},
            "vq_config": {"base_channels": 32, "latent_channels": 32, "num_embeddings": 16, "embed_dim": 8},
        },
        special={
            "image_token": "<image_placeholder>",
            "boi_token": "<begin_of_image>",
            "eoi_token": "<end_of_image>",
        },
        images={"size": SQUARE, "min_size": 14},
        processor={"use_default_system_prompt": False, "num_image_tokens": 16},
        image="<image_placeholder>",
    ),
    "deepseek_vl": Recipe(
        special={"image_token": "<image_placeholder>"},
        images={"size": SQUARE, "min_size": 14},
        processor={"num_image_tokens": 16},
        image="<image_placeholder>",
    ),
}
