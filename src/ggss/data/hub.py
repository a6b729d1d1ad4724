"""Public data sets on the Hugging Face hub: what a download would bring, the download, and which revision is here.

Nothing is fetched before its size and licence are known; the hub says both. A folder that was downloaded has a file
`ggss_download.json` with the repository, its revision and its files. The revision of a benchmark's file is a part of
its items, and so of the identity of what is asked.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ggss.errors import InputError
from ggss.files import read_json, write_whole

RECORD = "ggss_download.json"
SECONDS = 30.0  # to wait for the hub's description of a repository
NOT_STATED = "not stated"
_LEVELS = 3  # folders above a file in which its record may be


@dataclass(frozen=True)
class HubData:
    """A data set: its repository, and the patterns of the files that are needed. folder: its place in GGSS_DATA."""

    title: str
    repository: str
    patterns: tuple[str, ...]
    folder: str = ""

    @property
    def address(self) -> str:
        return f"https://huggingface.co/datasets/{self.repository}"


MMSTAR = HubData("MMStar", "Lin-Chen/MMStar", ("MMStar.tsv",), "MMStar")
MME = HubData("MME", "lmms-lab/MME", ("data/test-*.parquet",), "MME")
SOCIAL_COUNTERFACTUALS = HubData("SocialCounterfactuals", "Intel/SocialCounterfactuals", ("data/*.parquet",))


@dataclass(frozen=True)
class Offer:
    """What a download brings: a revision of a repository, its licence, and by name the bytes of each file."""

    data: HubData
    revision: str
    licence: str
    files: Mapping[str, int]

    @property
    def size(self) -> int:
        return sum(self.files.values())


def offered(data: HubData, folder: Path, hub: Any = None) -> Offer:
    """What the hub has of a data set, in its newest revision. hub: in the place of `huggingface_hub`.

    InputError if the hub cannot be reached or does not have the files, with what to put into the folder by hand.
    """
    hub = hub or _hub()
    files = " and ".join(data.patterns)
    by_hand = f"where there is a network, get {files} from {data.address}, and put them into {str(folder)!r}"
    try:
        info = hub.HfApi().dataset_info(data.repository, files_metadata=True, timeout=SECONDS)
    except Exception as error:  # of requests, httpx and the hub, by its version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{data.title} cannot be downloaded ({reason}): {by_hand}") from error
    sizes = {
        file.rfilename: int(file.size or 0)
        for file in info.siblings or ()
        if any(fnmatch(file.rfilename, pattern) for pattern in data.patterns)
    }
    if not sizes:
        raise InputError(f"{data.repository} has no {files} at revision {info.sha}: look at {data.address}")
    card = getattr(info, "card_data", None) or {}
    licence = card.get("license") or NOT_STATED
    return Offer(data, info.sha, ", ".join(licence) if isinstance(licence, list) else str(licence), sizes)


def download(offer: Offer, folder: Path, hub: Any = None) -> None:
    """Download into a folder. Files of an earlier download that are not in this revision are removed.

    InputError if there is no room, or if a file is not as large as the hub says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(size for name, size in offer.files.items() if not _is_there(folder / name, size))
    if (free := shutil.disk_usage(folder).free) < needed:
        raise InputError(f"{str(folder)!r} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")
    hub = hub or _hub()
    try:
        hub.snapshot_download(
            offer.data.repository,
            repo_type="dataset",
            revision=offer.revision,
            allow_patterns=list(offer.files),
            local_dir=folder,
        )
    except OSError as error:
        raise InputError(f"the download of {offer.data.title} stopped ({error}): the same command goes on") from error
    wrong = [name for name, size in offer.files.items() if not _is_there(folder / name, size)]
    if wrong:
        raise InputError(f"{', '.join(wrong)} did not arrive as the hub describes it: delete it and try again")
    for name in _record(folder).get("files", {}):
        if name not in offer.files:
            (folder / name).unlink(missing_ok=True)
    content = {"repository": offer.data.repository, "revision": offer.revision, "licence": offer.licence}
    write_whole(folder / RECORD, json.dumps(content | {"files": dict(offer.files)}, indent=2).encode())


def revision_of(path: Path) -> str:
    """REPOSITORY@REVISION of a file or folder that was downloaded; "" if it was not, or is not as it was then."""
    folders = [path, *path.parents][: _LEVELS + 1] if path.is_dir() else list(path.parents)[:_LEVELS]
    for folder in folders:
        record = _record(folder)
        if not record:
            continue
        sizes = record.get("files", {})
        names = sizes if path.is_dir() else [path.relative_to(folder).as_posix()]
        known = all(name in sizes and _is_there(folder / name, sizes[name]) for name in names)
        return f"{record.get('repository', '')}@{record.get('revision', '')}" if known else ""
    return ""


def _is_there(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _record(folder: Path) -> dict[str, Any]:
    file = folder / RECORD
    record = read_json(file, f"the record {str(file)!r}") if file.is_file() else {}
    return record if isinstance(record, dict) else {}


def _hub() -> Any:
    import huggingface_hub  # transformers needs it, so it is installed

    return huggingface_hub
