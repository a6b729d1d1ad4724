"""The small-world Pixtral and Qwen3-VL as GGUF files: the text model, and the mmproj with tower and projector.

They are for tests. The tokenizer of the small world has whole words, which llama.cpp has no kind of vocabulary for:
each word with a space after it is a token that the user defined, and a prompt is written in these.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import gguf

CONTROL, USER_DEFINED, UNKNOWN = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.UNKNOWN
Tensors = dict[str, np.ndarray]


def write(source: Path, folder: Path) -> tuple[Path, Path]:
    """Write `text.gguf` and `mmproj.gguf` of a small-world checkpoint, all numbers in float32."""
    config = json.loads((source / "config.json").read_text())
    tensors = {name: own.astype(np.float32) for name, own in load_file(source / "model.safetensors").items()}
    pixtral = config["model_type"] == "llava"
    folder.mkdir(parents=True, exist_ok=True)
    text, mmproj = folder / "text.gguf", folder / "mmproj.gguf"
    _write_text(text, config, source, tensors, pixtral)
    _write_mmproj(mmproj, config, source, tensors, pixtral)
    return text, mmproj


def spelled(source: Path) -> list[str]:
    """The vocabulary as it is in the GGUF file, by id."""
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    special = {own["content"] for own in tokenizer["added_tokens"]}
    words = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    return [word if word in special else f"{word} " for word, _ in words]


def _write_text(path: Path, config: Any, source: Path, tensors: Tensors, pixtral: bool) -> None:
    text = config["text_config"]
    writer = gguf.GGUFWriter(path, "llama" if pixtral else "qwen3vl")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(source.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(text["vocab_size"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_rope_freq_base(text["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(text["head_dim"])
    if not pixtral:
        writer.add_rope_dimension_sections([*text["rope_parameters"]["mrope_section"], 0])
        writer.add_num_deepstack_layers(len(config["vision_config"]["deepstack_visual_indexes"]))
    tokens = spelled(source)
    special = {name: i for i, name in enumerate(tokens) if not name.endswith(" ")}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([_kind(token) for token in tokens])
    writer.add_bos_token_id(text["bos_token_id"])
    writer.add_eos_token_id(text["eos_token_id"])
    writer.add_unk_token_id(special["<unk>"])
    writer.add_pad_token_id(text["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    layers = text["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA if pixtral else gguf.MODEL_ARCH.QWEN3VL, layers)
    for name, own in tensors.items():
        if "language_model." not in name and "lm_head." not in name:
            continue
        plain = name.replace("model.language_model.", "model.").removeprefix("language_model.")
        if pixtral and plain.endswith(("q_proj.weight", "k_proj.weight")):
            own = in_pairs(own, text["num_attention_heads"])
        _add(writer, names.get_name(plain, (".weight", ".bias")), own, plain)
    _finish(writer)


def _kind(token: str) -> gguf.TokenType:
    return USER_DEFINED if token.endswith(" ") else UNKNOWN if token == "<unk>" else CONTROL


def in_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key in llama.cpp's order: the two halves that a rotation mixes stand beside each other."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_mmproj(path: Path, config: Any, source: Path, tensors: Tensors, pixtral: bool) -> None:
    vision = config["vision_config"]
    pictures = json.loads((source / "processor_config.json").read_text())["image_processor"]
    depth = vision["num_hidden_layers" if pixtral else "depth"]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_name(source.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    side = vision["image_size"] if pixtral else int(vision["num_position_embeddings"] ** 0.5) * vision["patch_size"]
    writer.add_vision_image_size(side)
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(depth)
    writer.add_vision_head_count(vision["num_attention_heads" if pixtral else "num_heads"])
    writer.add_vision_image_mean(pictures["image_mean"])
    writer.add_vision_image_std(pictures["image_std"])
    writer.add_vision_use_gelu(True)
    if pixtral:
        writer.add_clip_projector_type(gguf.VisionProjectorType.PIXTRAL)
        writer.add_vision_attention_layernorm_eps(1e-5)
    else:
        writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
        writer.add_vision_attention_layernorm_eps(config["text_config"]["rms_norm_eps"])
        writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
        writer.add_vision_is_deepstack_layers([i in vision["deepstack_visual_indexes"] for i in range(depth)])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, depth)

    def known(name: str) -> str | None:
        return names.get_name(name, (".weight", ".bias"))

    parts = _pixtral_parts(tensors, vision, known, source) if pixtral else _qwen_parts(tensors, vision, known)
    for name, own in parts:
        _add(writer, name, own, name)
    _finish(writer)


def _pixtral_parts(
    tensors: Tensors, vision: Any, known: Callable[[str], str | None], source: Path
) -> Iterator[tuple[str | None, np.ndarray]]:
    row = spelled(source).index("[IMG_BREAK]")
    yield "v.token_embd.img_break", tensors["language_model.model.embed_tokens.weight"][row]
    for name, own in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            own = in_pairs(own, vision["num_attention_heads"])
        if name.startswith(("vision_tower.", "multi_modal_projector.")):
            yield known(name), own


def _qwen_parts(
    tensors: Tensors, vision: Any, known: Callable[[str], str | None]
) -> Iterator[tuple[str | None, np.ndarray]]:
    linears = {"linear_fc1": "mm.0", "linear_fc2": "mm.2"}
    for name, own in tensors.items():
        if not name.startswith("model.visual."):
            continue
        plain = name.removeprefix("model.visual.")
        part, which = plain.rsplit(".", 2)[-2:]
        if plain.startswith("deepstack_merger_list."):
            layer = vision["deepstack_visual_indexes"][int(plain.split(".")[1])]
            yield f"v.deepstack.{layer}.{part.removeprefix('linear_')}.{which}", own
        elif plain.startswith("merger."):
            yield f"{'v.post_ln' if part == 'norm' else linears[part]}.{which}", own
        elif plain == "patch_embed.proj.weight":  # a picture is two frames of the same content
            yield "v.patch_embd.weight", own[:, :, 0]
            yield "v.patch_embd.weight.1", own[:, :, 1]
        elif plain == "patch_embed.proj.bias":
            yield "v.patch_embd.bias", own
        else:
            yield known(f"visual.{plain}"), own


def _add(writer: gguf.GGUFWriter, name: str | None, tensor: np.ndarray, origin: str | None) -> None:
    assert name is not None, f"no name in GGUF for {origin}"
    writer.add_tensor(name, np.ascontiguousarray(tensor))


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
