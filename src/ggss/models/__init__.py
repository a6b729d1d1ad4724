"""What ggss knows about vision-language models: families, sites, processors, and the `Vlm` that answers questions.

Here is where a model is, by its name: in a registered collection, in a directory, or on the hub. That imports no
torch, so that a wrong name is refused at once. The names of `_HOME` are imported when they are first used:
transformers takes seconds.
"""

import os
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggss.errors import InputError, nearest, no_such
from ggss.escaping import is_unicode
from ggss.models.sites import MLP1, MLP2
from ggss.plugins import Registry

if TYPE_CHECKING:
    from ggss.models.families import Family, register
    from ggss.models.features import Features
    from ggss.models.identity import ModelIdentity, fingerprint
    from ggss.models.reading import Answer
    from ggss.models.site_search import family_of, find_site
    from ggss.models.sites import resolve
    from ggss.models.vlm import Vlm, load_vlm

COLLECTIONS: Registry[Callable[[], dict[str, Path]]] = Registry("collection of models", "ggss.models")
"""Models that come with an installed package, used by their name COLLECTION/NAME: by the name before the slash, a
function that gives the folder of each of its models by name."""

PATIENCE = 4.0  # seconds, including the DNS lookup, which has no time limit of its own

_HOME = {
    "Family": "families",
    "Features": "features",
    "ModelIdentity": "identity",
    "Answer": "reading",
    "Vlm": "vlm",
    "family_of": "site_search",
    "find_site": "site_search",
    "fingerprint": "identity",
    "load_vlm": "vlm",
    "register": "families",
    "resolve": "sites",
}

__all__ = [
    "COLLECTIONS",
    "MLP1",
    "MLP2",
    "Answer",
    "Family",
    "Features",
    "ModelIdentity",
    "Vlm",
    "family_of",
    "find_site",
    "fingerprint",
    "load_vlm",
    "locate",
    "register",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"ggss.models.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ggss.models' has no attribute {name!r}")


def locate(name: str, ask_hub: bool = True) -> str:
    """The directory or hub id of a name. ask_hub: also check that the hub has it."""
    if not is_unicode(name):
        raise InputError(f"the model's name {name!r} is not UTF-8, and it is written into files: rename or link it")
    collection, slash, model = name.partition("/")
    if slash and collection in COLLECTIONS:
        folders = COLLECTIONS.get(collection)()
        if model not in folders:
            raise no_such(f"there is no model {name!r}", name, (f"{collection}/{known}" for known in folders))
        return str(folders[model])
    path = Path(os.path.expanduser(name))  # unlike pathlib's, it leaves the home of an unknown user as it is
    looks_local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"{name!r} is not a model, it has no config.json: give a directory saved with save_pretrained"
            )
        return str(path)
    if path.exists() or looks_local:
        problem = "is a file" if path.exists() else "does not exist"
        raise InputError(_with_hint(f"the model directory {name!r} {problem}: give a directory or a hub id", name))
    if ask_hub:
        try:
            check_reachable(name)
        except InputError as error:
            raise InputError(_with_hint(str(error), name)) from error
    return name


def snapshot(name: str) -> Path | None:
    """The folder in the local cache of the hub that has a model's config, and perhaps its other files; None: none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def _with_hint(sentence: str, name: str) -> str:
    """The sentence, and the nearest model of a collection; its name is compared with and without the collection."""
    models = [
        f"{collection}/{model}" for collection in COLLECTIONS.names() for model in COLLECTIONS.get(collection)()
    ]
    full_name = next((model for model in models if model.partition("/")[2] == name), name)
    near = nearest(full_name, models)
    return f"{sentence}; {near}" if near else sentence


@cache
def check_reachable(name: str, file: str = "config.json") -> None:
    """InputError unless a file of a repository is in the local cache, or the hub says in time that it has it.

    Without a network, transformers would retry for half a minute.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        if isinstance(try_to_load_from_cache(name, file), str):
            return
    except HFValidationError as error:
        raise InputError(f"{name!r} is neither a folder nor a name on the hub: {error}") from error
    wait = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or PATIENCE)
    outcomes: list[Exception | None] = []

    def ask() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(name, file), timeout=wait)
            outcomes.append(None)
        except Exception as error:  # of the hub, its HTTP client or the operating system
            outcomes.append(error)

    thread = threading.Thread(target=ask, daemon=True)  # so that the process need not wait for it to end
    thread.start()
    thread.join(wait)
    late = TimeoutError(f"no answer in {wait:g} s; HF_HUB_ETAG_TIMEOUT=30 waits longer")
    error = outcomes[0] if outcomes else late
    if isinstance(error, HfHubHTTPError) and getattr(error, "response", None) is not None:
        raise InputError(
            f"the hub does not give {file} of {name!r} (status {error.response.status_code}): check the name; for a "
            "private or gated model log in with `hf auth login`"
        ) from error
    if error is not None:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{name!r} is no folder here and the hub cannot be reached, offline? ({reason}): give a folder"
        ) from error
