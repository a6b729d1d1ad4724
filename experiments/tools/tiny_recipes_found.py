"""What a tiny model of a class needs for which ggss has no row in its table: tokens, sizes of images, tiles."""

from typing import Any

from experiments.tools.tiny_recipes import CROPPED, GLM, GRIDS, LINEAR, MROPE, PIXELS, PIXTRAL, QWEN, SQUARE, qwen_ids
from experiments.tools.tiny_vlms import HEADS, PATCH, SIDE, WIDTH, Recipe

SAM = {"mlp_dim": 2 * WIDTH, "output_channels": WIDTH, "window_size": 2, "global_attn_indexes": [1]}
VQ = {"base_channels": 32, "latent_channels": 32, "num_embeddings": 9, "embed_dim": 32, "num_res_blocks": 1}
CODES = {f"IMGIMG{letter}Z": f"IMGIMG{letter}Z" for letter in "ABCDEFGHI"}
MINICPM = Recipe(
    lambda words: {
        "insert_layer_id": 0,
        "video_token_id": words.convert_tokens_to_ids("<video>"),
        "vision_config": {"patch_size": PATCH // 2, "image_size": 2 * SIDE},
        "text_config": LINEAR
        | {"rope_parameters": MROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0}},
    },
    images={"patch_size": PATCH // 2, "scale_resolution": SIDE, "max_slice_nums": 4},
)


def _ids(words: Any, **tokens: str) -> dict[str, int]:
    return {name: words.convert_tokens_to_ids(token) for name, token in tokens.items()}


def _emu3(words: Any) -> dict[str, Any]:
    codes = {f"<|visual token {i:06d}|>": words.convert_tokens_to_ids(f"<|visual token {i:06d}|>") for i in range(16)}
    others = {token: words.convert_tokens_to_ids(token) for token in ("<image>", "<|extra_200|>")}
    return {
        "vocabulary_map": codes | others,
        "vq_config": {
            "base_channels": 32,
            "codebook_size": 16,
            "embed_dim": 4,
            "hidden_size": 128,
            "attn_resolutions": [],
        },
    }


def _omni(processor: str, **vision: Any) -> Recipe:
    return Recipe(
        lambda words: {
            **qwen_ids(words),
            "audio_token_id": words.convert_tokens_to_ids("<|AUDIO|>"),
            "vision_config": {"patch_size": PATCH // 2} | vision,
            "text_config": {"rope_parameters": MROPE | {"mrope_interleaved": True}},
            "audio_config": {"output_dim": WIDTH, "downsample_hidden_size": WIDTH, "num_mel_bins": 16},
        },
        special=QWEN
        | {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>", "audio_token": "<|AUDIO|>"},
        images={"size": PIXELS, "patch_size": PATCH // 2, "merge_size": 2},
        image_class="Qwen2VLImageProcessorPil",
        processor_class=processor,
        feature_extractor="WhisperFeatureExtractor",
        image="<|vision_start|><|image_pad|><|vision_end|>",
    )


FOUND: dict[str, Recipe] = {
    "aria": Recipe(
        lambda _: {
            "vision_config": {"patch_size": 14, "image_size": 980},
            "projector_patch_to_query_dict": {1225: 16, 4900: 32},
            "text_config": {"moe_num_experts": 4},
        },
        images={"max_image_size": 490},
        processor={"size_conversion": {490: 16, 980: 32}},
    ),
    "blip-2": Recipe(special={"image_token": ""}),
    "instructblip": Recipe(special={"image_token": ""}),
    "chameleon": Recipe(
        lambda words: {
            "vocabulary_map": {token: words.convert_tokens_to_ids(token) for token in ("<image>", *CODES)},
            "vq_config": VQ | {"resolution": SIDE},
        },
        special={"boi_token": "<racm3:break>", "eoi_token": "<eoss>", "sep_token": "<reserved08706>", **CODES},
        processor={"image_seq_length": 16},
    ),
    "cohere_compass": Recipe(
        lambda words: {
            **_ids(words, image_token_id="<|IMAGE_PAD|>", video_token_id="<|VIDEO_PAD|>"),
            "text_config": {"rope_parameters": {"full_attention": MROPE | {"mrope_interleaved": True}}},
        },
        special={
            "image_token": "<|IMAGE_PAD|>",
            "video_token": "<|VIDEO_PAD|>",
            "vision_start_token": "<|VISION_START|>",
            "vision_end_token": "<|VISION_END|>",
        },
        image="<|VISION_START|><|IMAGE_PAD|><|VISION_END|>",
    ),
    "cosmos3_edge": Recipe(
        lambda words: {**qwen_ids(words), "text_config": {"rope_parameters": MROPE}},
        special=QWEN,
        image="<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "deepseek_ocr2": Recipe(
        lambda _: {
            "vision_config": {"sam_config": SAM | {"downsample_channels": [WIDTH, WIDTH], "initializer_range": 0.02}},
            "text_config": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
            | {"mlp_layer_types": ["dense", "sparse"]},
        },
        images={"size": {"height": 1024, "width": 1024}, "tile_size": 768},
    ),
    "deepseek_vl_hybrid": Recipe(
        lambda _: {"high_res_vision_config": SAM | {"image_size": 4 * SIDE}},
        images={"size": SQUARE, "high_res_size": {"height": 4 * SIDE, "width": 4 * SIDE}, "min_size": 14},
        processor={"num_image_tokens": 16},
    ),
    "emu3": Recipe(
        _emu3,
        special={
            "boi_token": "<|image start|>",
            "eoi_token": "<|image end|>",
            "image_wrapper_token": "<|image token|>",
            "eof_token": "<|extra_201|>",
            "eol": "<|extra_200|>",
            **{f"code{i}": f"<|visual token {i:06d}|>" for i in range(16)},
        },
        images={"min_pixels": SIDE**2, "max_pixels": 4 * SIDE**2},
    ),
    "ernie4_5_vl_moe": Recipe(
        lambda words: {
            **_ids(words, image_token_id="<|IMAGE_PLACEHOLDER|>", image_start_token_id="<|IMAGE_START|>"),
            **_ids(words, image_end_token_id="<|IMAGE_END|>", video_token_id="<|video@placeholder|>"),
            "text_config": {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_intermediate_size": [WIDTH, WIDTH],
                "rope_parameters": MROPE | {"mrope_section": [1, 1, 2]},
            },
        },
        special={
            "image_token": "<|IMAGE_PLACEHOLDER|>",
            "image_start_token": "<|IMAGE_START|>",
            "image_end_token": "<|IMAGE_END|>",
            "video_token": "<|video@placeholder|>",
            "video_start_token": "<|VIDEO_START|>",
            "video_end_token": "<|VIDEO_END|>",
        },
        image="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
    ),
    "fuyu": Recipe(
        lambda words: {"image_token_id": words.convert_tokens_to_ids("|SPEAKER|"), "image_size": SIDE},
        special={"image_token": "|SPEAKER|", "newline": "|NEWLINE|", "answer": "<0x04>"},
        images={"size": SQUARE, "patch_size": {"height": PATCH, "width": PATCH}},
        image="|SPEAKER|",
    ),
    "gemma4": Recipe(
        lambda words: {
            "audio_config": None,
            "text_config": {"global_head_dim": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64},
            "vision_config": {"pooling_kernel_size": 2, "position_embedding_size": 64, "head_dim": WIDTH // HEADS}
            | {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2}
            | {"num_attention_heads": HEADS, "num_key_value_heads": HEADS},
        },
        special={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
        | {"audio_token": "<audio_soft_token>", "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>"},
        images={"max_soft_tokens": 70, "patch_size": PATCH, "pooling_kernel_size": 2},
        processor={"image_seq_length": 70},
        feature_extractor="Gemma4AudioFeatureExtractor",
        image="<image_soft_token>",
    ),
    "fast_vlm": Recipe(image_class="CLIPImageProcessorPil", processor_class="LlavaProcessor"),
    "gemma3n": Recipe(feature_extractor="Gemma3nAudioFeatureExtractor"),
    "glm5_next": Recipe(lambda _: {"text_config": {"layer_types": ["linear_attention", "full_attention"]}}),
    "glm_ocr": Recipe(
        GLM.config,
        GLM.special,
        GLM.images,
        image_class="Glm46VImageProcessorPil",
        processor_class="Glm46VProcessor",
        image=GLM.image,
    ),
    "glmga": Recipe(GLM.config, GLM.special, GLM.images, processor_class="Glm46VProcessor", image=GLM.image),
    "cosmos3_omni": Recipe(
        lambda words: {
            **qwen_ids(words),
            "vision_config": {"patch_size": PATCH // 2},
            "text_config": {"rope_parameters": MROPE | {"mrope_interleaved": True}},
        },
        special=QWEN,
        images={"size": PIXELS, "patch_size": PATCH // 2, "merge_size": 2},
        processor_class="Qwen3VLProcessor",
        image="<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "granite4_vision": Recipe(
        lambda _: {
            "image_grid_pinpoints": GRIDS,
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1],
            "vision_config": {"hidden_size": 64, "num_attention_heads": HEADS, "image_size": SIDE},
        },
        images=CROPPED | {"image_grid_pinpoints": GRIDS},
        processor={"patch_size": PATCH, "vision_feature_select_strategy": "default", "downsample_rate": "1/2"},
    ),
    "hunyuan_vl": Recipe(
        lambda words: {
            "vision_config": {"max_image_size": 4 * SIDE, "text_hidden_size": WIDTH, "out_hidden_size": WIDTH},
            "text_config": {"head_dim": WIDTH // HEADS}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1] * 4}},
        },
        image="<image_start_token><image><image_end_token>",
    ),
    "kosmos-2": Recipe(processor_class="Kosmos2Processor"),
    "kosmos-2.5": Recipe(processor_class="Kosmos2_5Processor"),
    "mistral_large4": Recipe(
        lambda _: {
            "vision_config": {"patch_size": PATCH // 2},
            "text_config": {"kv_source_layers": [0, 1], "kv_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
            | {"qk_nope_head_dim": 8, "index_n_heads": 2, "index_head_dim": 8, "indexer_types": ["full", "full"]},
        },
        special=PIXTRAL,
        images={"size": {"longest_edge": SIDE}, "patch_size": {"height": PATCH // 2, "width": PATCH // 2}},
        processor={"patch_size": PATCH // 2, "spatial_merge_size": 2},
        image="[IMG]",
    ),
    "minicpmv4_6": MINICPM,
    "minicpmv4_7": MINICPM,
    "ovis2": Recipe(
        lambda words: {
            "image_token_id": words.convert_tokens_to_ids("<IMG_ATOM>"),
            "visual_indicator_token_ids": [
                words.convert_tokens_to_ids(f"<IMG_{name}>") for name in ("START", "GRID", "COL", "ROW", "END")
            ],
            "vision_config": {"vocab_size": 64, "hidden_stride": 1},
        },
        special={name: f"<IMG_{name}>" for name in ("ATOM", "START", "GRID", "COL", "ROW", "END")},
        processor={"image_seq_length": 16},
    ),
    "paddleocr_vl": Recipe(
        lambda _: {"vision_config": {"patch_size": PATCH // 2}, "text_config": {"rope_parameters": MROPE}},
        special={"image_start": "<|IMAGE_START|>", "image_end": "<|IMAGE_END|>"},
        images={"patch_size": PATCH // 2, "merge_size": 2},
        image="<|IMAGE_START|><image><|IMAGE_END|>",
    ),
    "qianfan_ocr": Recipe(
        lambda words: {
            "image_token_id": words.convert_tokens_to_ids("<IMG_CONTEXT>"),
            "vision_config": {"image_size": [SIDE, SIDE], "patch_size": [PATCH // 2, PATCH // 2]},
        },
        special={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
        images={"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        processor={"image_seq_length": 16},
    ),
    "qwen4_exp": Recipe(
        lambda words: {
            **qwen_ids(words),
            "vision_config": {"patch_size": PATCH // 2},
            "text_config": LINEAR
            | {"rope_parameters": MROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0}}
            | {"layer_types": ["linear_attention", "indexed_attention"], "indexer_n_heads": 2, "indexer_kv_heads": 1}
            | {"indexer_head_dim": 8, "indexer_budget": 4096, "indexer_compress_ratio": 1, "hc_lowrank": 8},
        },
        special=QWEN,
        images={"size": PIXELS, "patch_size": PATCH // 2, "merge_size": 2},
        image="<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "qwen2_5_omni_thinker": _omni("Qwen2_5OmniProcessor", window_size=PATCH * 2, fullatt_block_indexes=[1]),
    "qwen3_omni_moe_thinker": _omni("Qwen3OmniMoeProcessor"),
    "florence2": Recipe(
        lambda _: {
            "vision_config": {"patch_size": [7, 3, 3, 3], "embed_dim": [16, 16, 32, 32], "num_heads": [2, 2, 4, 4]}
            | {"num_groups": [2, 2, 4, 4], "depths": [1, 1, 1, 1], "projection_dim": WIDTH},
        },
        images={"image_seq_length": 5},
    ),
    "shieldgemma2": Recipe(processor_class="ShieldGemma2Processor"),
}
