"""The identity of a model: everything that determines its answers, part by part. Caches and studies use it as a key.

It is made from the loaded model, never from files or names: a copy of a folder is the same model, a folder with one
edited setting is another one. Parts are hashes, or words where these are short, so that a difference can be named.

It is computed again at every use, because a model can be changed in memory. Only the hash of the weights is kept,
together with a checksum of every weight: version counters of tensors do not see `weight.data.mul_(-1)`. Hooks and
replaced methods cannot be hashed: `check_unchanged` refuses a model that has any.

The device is left out, and so are buffers that a model computes from its config: they change last digits only, and a
study that began on one machine may be finished on another.

`fingerprint` hashes the rounded vision weights: it says which model a steerer is for. `StreamedWeights` computes the
same while another engine than transformers reads a checkpoint.

A model may be wrapped or changed inside: by torch.compile, PEFT's adapters, accelerate's hooks, and by steerers that
`ggss export` has folded into its weights. `unwrapped` and `plain_weights` look through that.
"""

import hashlib
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import is_parametrized
from transformers import AutoModelForImageTextToText

from ggss import hashing
from ggss.errors import InputError, problems
from ggss.models.hooks import RECORDER, Attachment
from ggss.models.placement import ConvertedLinear
from ggss.models.processors import backend_of
from ggss.version import installed_version, library_versions

COMPILED = "_orig_mod"  # the attribute of torch.compile's wrapper that is the module
EXPORTED = "ggss_export"  # in a model's config: the steerers in its weights
APPROXIMATED = "approximation"  # set for a steerer whose weights hold the nearest affine map
_BASE = ".base_layer"  # the attribute of an adapter that is the layer it replaces

PREPARATION = 1
"""Version of how ggss decodes pictures and writes prompts: raise it when the same input gives other numbers."""

_LANGUAGE = ("language_model.", "lm_head.")  # in the names of the text model's weights
_NAMES = {  # settings that say where something came from, or that have a part of their own
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "architectures", "processor_class"),
    *("is_local", "local_files_only", "cache_dir", "revision", "token", "trust_remote_code", "auto_map"),
    *("vocab_file", "merges_file", "tokenizer_file", "_from_model_config", "dtype", "torch_dtype", "chat_template"),
}
_PASSING = {"training", "gradient_checkpointing", "max_seq_len_cached"}  # attributes that change no output
STEERED = "steering in the weights"  # a part that only an exported model has
_OF_THE_MACHINE = (
    *("dtype", "vision attention", "text attention", "image backend", "code", "library versions", "engine"),
    "preparation",
)
_WORDS = (*_OF_THE_MACHINE[:-1], STEERED)  # parts that are words, not hashes
_OPTIONAL = ("model.", "vision_model.")  # parts of names that some versions of checkpoints and transformers leave out
_LARGE, _BLOCK = 2**22, 2**26  # bytes: from which size threads are worth their start; read at a time
_ODD = -0x61C8864680B583EB  # 2**64 over the golden ratio, as a signed integer: a usual multiplier of hashes

_hashes: WeakKeyDictionary[nn.Module, dict[tuple[bool, bool], tuple[object, str]]] = WeakKeyDictionary()
_config_settings: dict[tuple[type, str], Mapping[str, Any]] = {}  # of the config that was used last


@dataclass(frozen=True)
class ModelIdentity:
    """What determines a model's numbers, by part. Equal identities give equal numbers, up to rounding."""

    parts: Mapping[str, str]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all parts."""
        return hashing.of(dict(self.parts))

    def differences(self, earlier: "ModelIdentity") -> list[str]:
        """The names of the parts that differ; with both values where these are words."""
        changed = []
        for name in dict.fromkeys((*self.parts, *earlier.parts)):
            value, earlier_value = (parts.get(name, "none") for parts in (self.parts, earlier.parts))
            if value != earlier_value:
                changed.append(f"{name} ({earlier_value} before, {value} now)" if name in _WORDS else name)
        return changed

    def model_differences(self, earlier: "ModelIdentity") -> list[str]:
        """The same, but for what the machine decides: dtype, attention, libraries."""
        first, second = (
            ModelIdentity({name: value for name, value in parts.items() if name not in _OF_THE_MACHINE})
            for parts in (self.parts, earlier.parts)
        )
        return first.differences(second)


def visual_identity(model: Any, processor: Any) -> ModelIdentity:
    """Everything that determines an image's visual tokens, before any text is read."""
    text, attention = _text_config_name(model.config), _attention(model.config)
    settings, parts = visual_settings(model, processor), (model, processor, processor.image_processor)
    versions = library_versions() | {name: installed_version(name) for name in ("numpy", "tokenizers")}
    del versions["ggss"]  # PREPARATION stands for it
    return ModelIdentity(
        {
            "vision weights": _hash(model, language=False),
            "vision config": hashing.of({k: v for k, v in settings.items() if k.startswith("config.")}),
            "image processor": hashing.of({k: v for k, v in settings.items() if not k.startswith("config.")}),
            "dtype": str(model.dtype).removeprefix("torch."),
            "vision attention": " ".join(sorted({kind for name, kind in attention.items() if name != text})),
            "vision modules": hashing.of(_modules(model, language=False)),
            "image backend": backend_of(processor),
            "code": ", ".join(sorted({type(part).__module__ for part in parts})),
            "library versions": ", ".join(f"{name} {number}" for name, number in sorted(versions.items())),
            "preparation": str(PREPARATION),
            **({STEERED: words} if (words := exported_words(vars(model.config))) else {}),
        }
    )


def whole_identity(model: Any, processor: Any) -> ModelIdentity:
    """Everything that determines a model's answers."""
    text = _text_config_name(model.config)
    return ModelIdentity(
        {
            **visual_identity(model, processor).parts,
            "text weights": _hash(model, language=True),
            "text modules": hashing.of(_modules(model, language=True)),
            "text config": hashing.of(_settings(model.config).get(text, {})),
            "text attention": _attention(model.config).get(text, ""),
            "tokenizer": hashing.of(_tokenizer(processor.tokenizer)),
            "chat template": hashing.of(_chat_template(processor)),
            "generation settings": hashing.of(_plain(model.generation_config.to_dict())),
        }
    )


def visual_settings(model: Any, processor: Any = None) -> dict[str, Any]:
    """What determines the visual tokens besides weights, by names such as `config.vision_config.patch_size`.

    An artefact records the values themselves: another version of transformers may have other settings, and then those
    that both have are compared.
    """
    text = _text_config_name(model.config)
    settings = {"config": {name: value for name, value in _settings(model.config).items() if name != text}}
    if processor is not None:
        other_parts = ("image_processor", "video_processor", "tokenizer", "feature_extractor")
        settings["processor"] = _plain({k: v for k, v in processor.to_dict().items() if k not in other_parts})
        settings["image_processor"] = _plain(processor.image_processor.to_dict())
    return dict(_flat(settings))


def text_settings(model: Any, processor: Any = None) -> dict[str, Any]:
    """What determines the rows of an image inside the text model, besides weights and visual tokens.

    The tokenizer and the chat template determine the text before the image.
    """
    settings: dict[str, Any] = {"text_config": _settings(model.config).get(_text_config_name(model.config), {})}
    if processor is not None:
        settings |= {"tokenizer": hashing.of(_tokenizer(processor.tokenizer))}
        settings |= {"chat_template": hashing.of(_chat_template(processor))}
    return dict(_flat(settings))


def check_unchanged(model: nn.Module, text: bool = False) -> None:
    """InputError if hooks or replaced methods act on the vision path; with text, if they act anywhere in the model.

    What they compute is in no weight and no setting: it cannot be identified, so nothing of it may be kept.
    """
    if changes := [words for path, words in interventions(model) if text or not of_language(f"{path}.")]:
        raise problems(
            "the model is being steered or changed, so its results must not be cached as its own: detach or remove "
            "this first",
            changes,
        )


def is_intervened(model: nn.Module) -> bool:
    """Whether hooks or replaced methods act on the vision path."""
    return any(not of_language(f"{path}.") for path, _ in interventions(model))


def interventions(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Where code other than the model's own acts in this thread: module path, and a description.

    Hooks that only observe are left out: those of transformers that record hidden states, and those of ggss except a
    steerer's. Methods that accelerate replaces to move weights are left out too.
    """
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks"):
        if hooks := getattr(torch_module, name):
            yield "", f"a hook for all modules: {_code(next(iter(hooks.values())))}"
    for path, module in model.named_modules():
        where = path or type(module).__name__
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            yield from (
                (path, f"{_hook_name(hook)} at {where}") for hook in getattr(module, kind).values() if _acts(hook)
            )
        if is_parametrized(module):
            yield path, f"a parametrization of {where}"
        for name, method in vars(module).items():
            if callable(method) and callable(getattr(type(module), name, None)) and not _moves_weights(method):
                yield path, f"a replaced {name} of {where}: {_code(method)}"


def _acts(hook: Any) -> bool:
    """Whether a hook may change what the model computes in this thread."""
    attachment: Attachment | None = getattr(hook, "attachment", None)
    if attachment is not None:
        return attachment.acts()
    return getattr(hook, "__name__", "") != RECORDER and not _ours(hook)


def _hook_name(hook: Any) -> str:
    return "a steerer" if hasattr(hook, "attachment") else f"the hook {_code(hook)}"


def _ours(function: Any) -> bool:
    """Whether ggss defines the function, to observe a model."""
    return str(getattr(function, "__module__", "")).startswith("ggss.")


def _moves_weights(method: Any) -> bool:
    function = getattr(method, "func", method)  # accelerate's is a partial with the name of what it replaces
    return (
        str(getattr(function, "__module__", "")).startswith("accelerate.")
        or _ours(method)
        or hasattr(method, "watchers")
    )


def _code(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _modules(model: nn.Module, language: bool) -> list[tuple[str, str, str, dict[str, Any]]]:
    """The modules of the text model, or all others: path, class, forward's code, and plain attributes."""
    return [
        (path, _code(kind), _code(kind.forward), _plain(_constants(module)))
        for path, module, kind in _layers(model)
        if of_language(f"{path}.") == language
    ]


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """Path without wrappers, module and class of each module. Adapters are left out: they are part of the weights."""
    tuned = dict(tuned_layers(model))
    for path, module in model.named_modules():
        if path.endswith(COMPILED) or any(f"{path}.".startswith(f"{tuned_path}.") for tuned_path in tuned):
            continue
        kind = nn.Linear if type(module) is ConvertedLinear else type(module)
        yield path.replace(f"{COMPILED}.", ""), module, kind
    for path, layer in tuned.items():
        base = layer.get_base_layer()
        yield path.replace(f"{COMPILED}.", ""), base, nn.Linear if type(base) is ConvertedLinear else type(base)


def _constants(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str) and not name.startswith("_") and name not in _PASSING
    }


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of the weights of vision tower and projector: which model a steerer is for.

    Values are rounded, so that a model is recognised in float32, in bfloat16 and in the dtype of its checkpoint. A
    bfloat16 checkpoint is recognised in float16 too. A float32 checkpoint in float16 is not: rounding twice gives
    other numbers than rounding once.
    """
    return _hash(model, language=False, rounded=coarse)


def text_fingerprint(model: nn.Module) -> str:
    """SHA-256 of the text model's weights, rounded in the same way: for steerers that act inside it."""
    return _hash(model, language=True, rounded=coarse)


def coarse(values: Tensor) -> Tensor:
    """Values rounded to what bfloat16 and float16 both represent: 8 significant bits, float16's smallest steps."""
    return values.to(torch.bfloat16).to(torch.float16).to(torch.bfloat16)


def _hash(model: nn.Module, language: bool, rounded: Callable[[Tensor], Tensor] | None = None) -> str:
    """SHA-256 of the weights of the text model, or of all others, and of the adapters that act there.

    It is computed again only if one of them has changed.
    """
    weights, adapters = _weights(model, language), _adapters(model, language)
    state = adapters, checksums(weights)
    hashes = _hashes.setdefault(model, {})
    key = language, rounded is None
    if key not in hashes or hashes[key][0] != state:
        digest = hashing.of_tensors(weights, rounded)
        hashes[key] = state, hashing.of([digest, adapters]) if adapters else digest
    return hashes[key][1]


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Checksums that show whether tensors have changed in memory, several times faster than SHA-256.

    Each has dtype, shape, address and torch's version counter. The counter does not see changes of `weight.data`, so
    there is also a number that depends on every byte and its position: a CRC, which on a CPU takes 0.3 s a gigabyte
    for each of torch's threads; on other devices a sum of mixed words.
    """
    flat = {name: tensor.detach().contiguous().view(-1).view(torch.uint8) for name, tensor in tensors.items()}
    on_cpu = [name for name, data in flat.items() if data.device.type == "cpu"]
    values: dict[str, Any] = dict(zip(on_cpu, _crcs([flat[name] for name in on_cpu]), strict=True))
    devices: dict[torch.device, list[str]] = {}
    for name, data in flat.items():
        if name not in values:
            devices.setdefault(data.device, []).append(name)
    for names in devices.values():  # one copy from each device: a GPU is waited for at every copy
        sums = torch.stack([mixed_sum(flat[name]) for name in names])
        values |= zip(names, sums.tolist(), strict=True)
    return {name: (*_versions(tensor), values[name]) for name, tensor in tensors.items()}


def _versions(tensor: Tensor) -> tuple[Any, ...]:
    version = None if tensor.is_inference() else tensor._version  # torch does not count for inference tensors
    return str(tensor.dtype), tuple(tensor.shape), tensor.data_ptr(), version


def _crcs(flat: Sequence[Tensor]) -> list[int]:
    """The CRC of each tensor of bytes; large ones in torch's number of threads, which zlib lets run side by side."""
    threads = torch.get_num_threads() if sum(data.numel() for data in flat) > _LARGE else 1
    if threads == 1:
        return list(map(_crc, flat))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_crc, flat))


def _crc(data: Tensor) -> int:
    return zlib.crc32(data.numpy().data)


def mixed_sum(data: Tensor) -> Tensor:
    """A 64-bit number of a tensor of bytes, on its device: the sum of its words, mixed and weighted by position.

    Without mixing, two words that differ in their highest bit alone, as negated numbers do, would cancel out.
    """
    data = data.clone() if data.storage_offset() % 8 else data  # words begin at every eighth byte
    end = data.numel() // 8 * 8
    total = _weighted(data[end:].to(torch.int64), -8)  # up to seven bytes at the end; the weights are no word's
    for start in range(0, end, _BLOCK):  # blocks, so that little memory is needed
        words = data[start : min(start + _BLOCK, end)].view(torch.int64)
        total = total + _weighted(words, start // 8)
    return total


def _weighted(words: Tensor, start: int) -> Tensor:
    positions = torch.arange(start, start + len(words), device=words.device)
    return (_mixed(words) * (_mixed(positions) | 1)).sum()


def _mixed(words: Tensor) -> Tensor:
    """A one-to-one function of 64-bit integers that spreads each bit over all."""
    mixed = words * _ODD
    return (mixed ^ ((mixed >> 32) & 0xFFFFFFFF)) * _ODD


def _adapters(model: nn.Module, language: bool) -> list[tuple[str, list[str]]]:
    """The paths where PEFT's adapters act, and their names: weights alone do not say whether adapters are active."""
    adapters = ((path, active_adapters(layer)) for path, layer in tuned_layers(model))
    return [(path, names) for path, names in adapters if names and of_language(f"{path}.") == language]


def of_language(name: str) -> bool:
    """Whether a weight of this name is the text model's."""
    return any(part in name for part in _LANGUAGE)


def _weights(model: nn.Module, language: bool) -> dict[str, Tensor]:
    """The weights of the text model, or all others."""
    weights = {name: weight for name, weight in plain_weights(model).items() if of_language(name) == language}
    if absent := [name for name, weight in weights.items() if weight.is_meta]:
        raise InputError(
            f"the weight {absent[0]} is not in memory, so the model cannot be identified: load it with a device_map "
            "that puts nothing on disk"
        )
    return weights


def _settings(config: Any) -> Mapping[str, Any]:
    """What a config says besides the defaults of its class, as plain data.

    transformers builds the default configs for it each time, so the result is kept for a config of equal content.
    """
    content = type(config), repr(config.to_dict())
    if content not in _config_settings:
        _config_settings.clear()
        _config_settings[content] = _plain(config.to_diff_dict())
    return _config_settings[content]


def _text_config_name(config: Any) -> str:
    """The attribute of a config that has the text model's config; "" if there is none."""
    text = config.get_text_config()
    return next((name for name in config.sub_configs if getattr(config, name, None) is text), "")


def _attention(config: Any) -> dict[str, str]:
    """The implementation of attention, by the name of the sub-config; "" is the config of the whole model."""
    configs = {"": config} | {name: getattr(config, name, None) for name in config.sub_configs}
    return {name: str(getattr(part, "_attn_implementation", None)) for name, part in configs.items()}


def _tokenizer(tokenizer: Any) -> list[Any]:
    """A tokenizer as plain data: vocabulary, merges, normalisation, added and special tokens, padding side."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        # Every call of the tokenizer sets these two.
        content |= {"truncation": None, "padding": None}
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            files = [
                file for file in sorted(Path(folder).iterdir()) if not file.name.endswith(("config.json", ".jinja"))
            ]
            content = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    settings = [tokenizer.special_tokens_map, tokenizer.padding_side, type(tokenizer).__name__]
    return [content, settings, _plain(tokenizer.init_kwargs)]


def _chat_template(processor: Any) -> Any:
    template = getattr(processor, "chat_template", None)
    return getattr(processor.tokenizer, "chat_template", None) if template is None else template


def _plain(value: Any) -> Any:
    """A value as JSON has it, without `_NAMES` and without settings that are None."""
    if isinstance(value, Mapping):
        return {
            str(name): _plain(entry) for name, entry in value.items() if str(name) not in _NAMES and entry is not None
        }
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, str | int | float) else repr(value)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested dictionaries, under names joined by dots."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, entry in sorted(value.items()):
        yield from _flat(entry, f"{path}.{name}" if path else name)


def skeleton(config: Any) -> nn.Module:
    """The model of a config, on the meta device: no weight is in memory."""
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


class StreamedWeights:
    """The fingerprint of a model whose weights are read one after the other, by another engine than transformers.

    Such an engine may join, split or drop weights, so what it holds cannot be compared. What it reads can: each
    weight of the vision path is hashed while it is read, under the name that transformers has for it.

    model: as transformers builds it; a `skeleton` is enough.
    """

    def __init__(self, model: nn.Module) -> None:
        weights = {name: weight for name, weight in model.state_dict().items() if not of_language(name)}
        self._names = {short_name(name): name for name in weights}
        self._shapes = {name: weight.shape for name, weight in weights.items()}
        self._digests: dict[str, str] = {}
        self._all: dict[str, str] = {}

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields the same names and weights, and hashes them."""
        for name, weight in weights:
            self._all[name] = hashing.of_tensor(name, weight)
            original = self._names.get(short_name(name))
            if original is not None:
                self._digests[original] = hashing.of_tensor(original, weight, coarse)
            yield name, weight

    def changed(self, weights: Iterable[tuple[str, Tensor]]) -> list[str]:
        """The names of the weights that an engine has changed while loading them.

        Only weights with the same name and shape are compared, and none in float16: it rounds numbers of other dtypes
        differently from the fingerprint.
        """
        changed = []
        for name, weight in weights:
            original = self._names.get(short_name(name), "")
            if self._shapes.get(original) != weight.shape or weight.dtype == torch.float16:
                continue
            if hashing.of_tensor(original, weight, coarse) != self._digests.get(original):
                changed.append(name)
        return changed

    @property
    def content(self) -> str:
        """SHA-256 of all weights that were read, including the text model's."""
        return hashing.of_digests(self._all)

    @property
    def fingerprint(self) -> str:
        """The same as `ggss.models.fingerprint` of the loaded model. InputError if a weight was not read."""
        if missing := [name for name in self._names.values() if name not in self._digests]:
            raise InputError(
                f"the model cannot be identified: {len(missing)} weights of the vision path are not in its "
                f"checkpoint under a known name, such as {missing[0]} (is it quantised?)"
            )
        return hashing.of_digests(self._digests)


def short_name(name: str) -> str:
    """A weight's name without the parts that differ between versions."""
    for part in _OPTIONAL:
        name = name.removeprefix(part).replace(f".{part}", ".")
    return name


def unwrapped(model: Any) -> Any:
    """The transformers model inside the wrappers of torch.compile and PEFT.

    Adapters such as LoRA's are layers of that model and act in it. Hooks on its modules fire whichever wrapper is
    called. InputError if there is no transformers model inside.
    """
    while True:
        parts = getattr(model, "_modules", {})
        if COMPILED in parts:
            model = parts[COMPILED]
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            break
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise InputError(
            f"a {type(model).__name__} is not a transformers model: pass the model as transformers loads it"
        )
    return model


def tuned_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that PEFT has replaced, by their path."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    if peft is not None:
        yield from ((path, layer) for path, layer in model.named_modules() if isinstance(layer, peft.BaseTunerLayer))


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by the names they have without wrappers. Inactive adapters are left out.

    Weights that accelerate has offloaded to memory or disk are loaded.
    """
    state = model.state_dict(keep_vars=True)
    weights = {name.replace(f"{COMPILED}.", ""): weight for name, weight in state.items()}
    if opaque := [name for name, weight in weights.items() if not isinstance(weight, Tensor)]:
        raise InputError(
            f"the weights of this {type(model).__name__} cannot be read: {opaque[0]} is not a tensor (torch's "
            "quantize_dynamic packs weights in this way). Use the model before that, or load it with bitsandbytes"
        )
    for path, layer in tuned_layers(model):
        if active_adapters(layer):
            continue
        start = f"{path.replace(f'{COMPILED}.', '')}."
        for name in [name for name in weights if name.startswith(start)]:
            weight = weights.pop(name)
            if name.startswith(f"{start[:-1]}{_BASE}."):
                weights[name.replace(_BASE, "", 1)] = weight
    if absent := [name for name, weight in weights.items() if weight.is_meta]:
        offloaded = dict(_offloaded(model))
        weights |= {name: offloaded[name] for name in absent if name in offloaded}
    return weights


def active_adapters(layer: Any) -> list[str]:
    """The adapters that change a layer's output now, each with its scaling; merged ones included."""
    names = list(layer.merged_adapters) or ([] if layer.disable_adapters else list(layer.active_adapters))
    scaling = getattr(layer, "scaling", {})
    present = {name for attribute in layer.adapter_layer_names for name in getattr(layer, attribute, {})}
    return [f"{name} {scaling.get(name, 1)}" for name in names if name in present]


def _offloaded(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights that accelerate's hooks load into a module when it is called."""
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            weights = getattr(part, "weights_map", None)
            if weights is not None:
                for name, _ in module.named_parameters(recurse=bool(getattr(part, "place_submodules", False))):
                    yield f"{path}.{name}" if path else name, weights[name]


def exported_steering(model: Any) -> list[dict[str, Any]]:
    """The steerers in a model's weights, as `ggss export` wrote them into its config; empty for any other model."""
    return noted_steering(vars(model.config))


def noted_steering(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same from a `config.json`."""
    noted = config.get(EXPORTED)
    return [steerer for steerer in noted if isinstance(steerer, dict)] if isinstance(noted, list) else []


def exported_words(config: Mapping[str, Any]) -> str:
    """The steerers in a model's weights, in words such as `race by pace at alpha 1.0`. config: its `config.json`."""
    return "; ".join(
        f"{steerer.get('attribute')} by {steerer.get('method')} at alpha {steerer.get('alpha')}"
        f"{', an approximation' if steerer.get(APPROXIMATED) else ''}"
        for steerer in noted_steering(config)
    )
