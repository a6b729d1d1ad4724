"""The identity of a model: all that decides its answers, part by part. Whatever is kept by content is kept under it.

It is made from the loaded model, never from files or names: a copy of a folder is the same model, a folder with one
edited setting is another one. Parts are hashes, or words where these are short, so that a difference can be named.

The device is left out, and so are buffers that a model computes from its config: they change last digits only, and a
study that began on one machine may be finished on another.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ggss import hashing
from ggss.errors import InputError
from ggss.models.wrappers import active_adapters, plain_weights, tuned_layers
from ggss.version import library_versions

PREPARATION = 1
"""How ggss itself decodes pictures and makes prompts of them: raise it when other numbers come of the same input."""

_LANGUAGE = ("language_model.", "lm_head.")  # in the names of weights that no image passes through before the text
_NAMES = {  # where something came from, and what has a part of its own
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "architectures", "processor_class"),
    *("is_local", "local_files_only", "cache_dir", "revision", "token", "trust_remote_code", "auto_map"),
    *("vocab_file", "merges_file", "tokenizer_file", "_from_model_config", "dtype", "torch_dtype", "chat_template"),
}
_WORDS = (
    "dtype",
    "vision attention",
    "text attention",
    "image backend",
    "code",
    "library versions",
    "engine",
)  # not hashes


@dataclass(frozen=True)
class ModelIdentity:
    """What decides a model's numbers, by part. Equal identities give equal numbers, up to rounding."""

    parts: Mapping[str, str]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all parts."""
        return hashing.of(dict(self.parts))

    def differences(self, earlier: "ModelIdentity") -> list[str]:
        """The names of the parts that are not as they were; with both values where these are words."""
        found = []
        for name in dict.fromkeys((*self.parts, *earlier.parts)):
            now, before = (parts.get(name, "none") for parts in (self.parts, earlier.parts))
            if now != before:
                found.append(f"{name} ({before} before, {now} now)" if name in _WORDS else name)
        return found


def visual_identity(model: Any, processor: Any, backend: str) -> ModelIdentity:
    """All that decides an image's visual tokens, before any text is seen."""
    text, attention = _text_config_name(model.config), _attention(model.config)
    settings, parts = visual_settings(model, processor), (model, processor, processor.image_processor)
    versions = library_versions() | {name: version(name) for name in ("numpy", "tokenizers")}
    del versions["ggss"]  # PREPARATION counts for it
    return ModelIdentity(
        {
            "vision weights": _hash(model, language=False),
            "vision config": hashing.of({k: v for k, v in settings.items() if k.startswith("config.")}),
            "image processor": hashing.of({k: v for k, v in settings.items() if not k.startswith("config.")}),
            "dtype": str(model.dtype).removeprefix("torch."),
            "vision attention": " ".join(sorted({own for name, own in attention.items() if name != text})),
            "image backend": backend,
            "code": ", ".join(sorted({type(one).__module__ for one in parts})),
            "library versions": ", ".join(f"{name} {number}" for name, number in sorted(versions.items())),
            "preparation": str(PREPARATION),
        }
    )


def whole_identity(model: Any, processor: Any, visual: ModelIdentity) -> ModelIdentity:
    """All that decides a model's answers; `visual` is its visual identity."""
    text = _text_config_name(model.config)
    return ModelIdentity(
        {
            **visual.parts,
            "text weights": _hash(model, language=True),
            "text config": hashing.of(_plain(model.config.to_diff_dict().get(text, {}))),
            "text attention": _attention(model.config).get(text, ""),
            "tokenizer": hashing.of(_tokenizer(processor.tokenizer)),
            "chat template": hashing.of(_chat_template(processor)),
            "generation settings": hashing.of(_plain(model.generation_config.to_dict())),
        }
    )


def visual_settings(model: Any, processor: Any = None) -> dict[str, Any]:
    """What decides the visual tokens besides weights, by names such as `config.vision_config.patch_size`.

    An artefact records them as they are: another version of transformers may know other settings, and then those
    that both know are compared.
    """
    config = _plain(model.config.to_diff_dict())
    config.pop(_text_config_name(model.config), None)
    told = {"config": config}
    if processor is not None:
        other = ("image_processor", "video_processor", "tokenizer", "feature_extractor")
        own = {name: value for name, value in processor.to_dict().items() if name not in other}
        told |= {"processor": _plain(own), "image_processor": _plain(processor.image_processor.to_dict())}
    return dict(_flat(told))


def text_settings(model: Any, processor: Any = None) -> dict[str, Any]:
    """What decides the rows of an image inside the text model, besides weights and the visual tokens.

    The tokenizer and the chat template decide what stands before the image.
    """
    config = model.config.to_diff_dict().get(_text_config_name(model.config), {})
    told: dict[str, Any] = {"text_config": _plain(config)}
    if processor is not None:
        told |= {"tokenizer": hashing.of(_tokenizer(processor.tokenizer))}
        told |= {"chat_template": hashing.of(_chat_template(processor))}
    return dict(_flat(told))


_fingerprints: WeakKeyDictionary[nn.Module, dict[bool, tuple[object, str]]] = WeakKeyDictionary()


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of the weights an image passes through before the text model: which model a steerer is for.

    Values are rounded so that a model is recognised in float32, in bfloat16 and in the dtype of its checkpoint, and
    that of a bfloat16 checkpoint in float16 too. (Of a float32 checkpoint in float16 it is not: both roundings one
    after the other give other numbers than one of them.) Computed once, and again after a weight was changed or an
    adapter was switched on or off.
    """
    return _fingerprint(model, language=False)


def text_fingerprint(model: nn.Module) -> str:
    """The same of the text model's weights, for steerers that act inside it."""
    return _fingerprint(model, language=True)


def _fingerprint(model: nn.Module, language: bool) -> str:
    weights = _weights(model, language)
    if any(weight.is_inference() for weight in weights.values()):  # torch does not count their changes
        return _hash(model, language, coarse)
    state = [_adapters(model, language), [(weight.data_ptr(), weight._version) for weight in weights.values()]]
    kept = _fingerprints.setdefault(model, {})
    if language not in kept or kept[language][0] != state:
        kept[language] = state, _hash(model, language, coarse)
    return kept[language][1]


def coarse(values: Tensor) -> Tensor:
    """Rounded to what bfloat16 and float16 both can say: 8 significant bits, and float16's smallest steps."""
    return values.to(torch.bfloat16).to(torch.float16).to(torch.bfloat16)


def _hash(model: nn.Module, language: bool, rounded: Callable[[Tensor], Tensor] | None = None) -> str:
    """Of the weights of one side, and of the adapters that act there."""
    weights, adapters = hashing.of_tensors(_weights(model, language), rounded), _adapters(model, language)
    return hashing.of([weights, adapters]) if adapters else weights


def _adapters(model: nn.Module, language: bool) -> list[tuple[str, list[str]]]:
    """Where PEFT's adapters act, and which: their weights alone do not say whether they are switched on."""
    found = ((path, active_adapters(layer)) for path, layer in tuned_layers(model))
    return [(path, names) for path, names in found if names and of_language(f"{path}.") == language]


def of_language(name: str) -> bool:
    """Whether a weight of this name is the text model's."""
    return any(part in name for part in _LANGUAGE)


def _weights(model: nn.Module, language: bool) -> dict[str, Tensor]:
    """The weights of the text model, or all others."""
    found = {name: weight for name, weight in plain_weights(model).items() if of_language(name) == language}
    if absent := [name for name, weight in found.items() if weight.is_meta]:
        raise InputError(
            f"the weight {absent[0]} is not in memory, so the model cannot be identified: load it with a device_map "
            "that puts nothing on disk"
        )
    return found


def _text_config_name(config: Any) -> str:
    """The name under which a config has the text model's, "" if it has none."""
    text = config.get_text_config()
    return next((name for name in config.sub_configs if getattr(config, name, None) is text), "")


def _attention(config: Any) -> dict[str, str]:
    """The implementation of attention, by the name of the config that says it; "" is the whole model's."""
    configs = {"": config} | {name: getattr(config, name, None) for name in config.sub_configs}
    return {name: str(getattr(own, "_attn_implementation", None)) for name, own in configs.items()}


def _tokenizer(tokenizer: Any) -> list[Any]:
    """All of it: vocabulary, merges, normalisation, added and special tokens, padding side."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        words = json.loads(backend.to_str())
        # The last call has set them, and each call sets them anew.
        words |= {"truncation": None, "padding": None}
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            files = [
                file for file in sorted(Path(folder).iterdir()) if not file.name.endswith(("config.json", ".jinja"))
            ]
            words = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    named = [tokenizer.special_tokens_map, tokenizer.padding_side, type(tokenizer).__name__]
    return [words, named, _plain(tokenizer.init_kwargs)]


def _chat_template(processor: Any) -> Any:
    own = getattr(processor, "chat_template", None)
    return getattr(processor.tokenizer, "chat_template", None) if own is None else own


def _plain(value: Any) -> Any:
    """As JSON has it, without the names of places, and without what is not set."""
    if isinstance(value, Mapping):
        return {str(name): _plain(own) for name, own in value.items() if str(name) not in _NAMES and own is not None}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    return value if isinstance(value, str | int | float) else repr(value)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested dictionaries, under names with dots."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, own in sorted(value.items()):
        yield from _flat(own, f"{path}.{name}" if path else name)
