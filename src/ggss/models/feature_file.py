"""Where features go that memory has no room for: a file without a name, which is gone when its process is."""

import io
import tempfile
import weakref
from typing import IO, Any

import torch
from safetensors.torch import load, save

from ggss.models.features import Features


class Shelf:
    """Features by their picture. The file lies where temporary files do (TMPDIR)."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[Any, tuple[int, int, str, torch.device]] = {}

    def __contains__(self, source: Any) -> bool:
        return source in self._places

    def put(self, source: Any, features: Features) -> None:
        """Keep a picture's features. Where the disk has no room either, they are not kept."""
        if source in self._places:
            return
        parts = {"rows": features.rows, "inputs": features.inputs}
        tensors = {f"{part}/{name}": value for part, of in parts.items() for name, value in of.items()}
        data = save({name: value.contiguous().cpu() for name, value in tensors.items()})
        try:
            file = self._open()
            start = file.seek(0, io.SEEK_END)
            whole = file.write(data) == len(data)
        except OSError:
            return
        if whole:
            self._places[source] = (start, len(data), features.placeholder, next(iter(features.rows.values())).device)

    def get(self, source: Any) -> Features:
        """The same features, on the device they came from."""
        start, size, placeholder, device = self._places[source]
        file = self._open()
        file.seek(start)
        parts: dict[str, dict[str, torch.Tensor]] = {"rows": {}, "inputs": {}}
        for name, value in load(file.read(size)).items():
            part, _, own = name.partition("/")
            parts[part][own] = value.to(device)
        return Features(parts["rows"], parts["inputs"], placeholder)

    def _open(self) -> IO[bytes]:
        if self._file is None:
            # Without a buffer: one that a full disk refuses would be refused again at every later use of the file.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (as long as the shelf lives)
            weakref.finalize(self, self._file.close)
        return self._file
