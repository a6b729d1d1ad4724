"""Features that do not fit in memory, in an unnamed temporary file that is deleted when the process ends."""

import io
import tempfile
import weakref
from dataclasses import replace
from typing import IO

import torch
from safetensors.torch import load, save

from ggss.models.features import Features


class FeatureFile:
    """Features by their picture's digest. The file is in the folder of temporary files (TMPDIR)."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int, Features, torch.device]] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def put(self, digest: str, features: Features) -> None:
        """Keep a picture's features. If the disk is full, they are not kept."""
        if digest in self._places:
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
            device = next(iter(features.rows.values())).device
            self._places[digest] = (start, len(data), replace(features, rows={}, inputs={}), device)

    def get(self, digest: str) -> Features:
        """The same features, on the device they came from."""
        start, size, rest, device = self._places[digest]
        file = self._open()
        file.seek(start)
        parts: dict[str, dict[str, torch.Tensor]] = {"rows": {}, "inputs": {}}
        for name, value in load(file.read(size)).items():
            part, _, own = name.partition("/")
            parts[part][own] = value.to(device)
        return replace(rest, rows=parts["rows"], inputs=parts["inputs"])

    def _open(self) -> IO[bytes]:
        if self._file is None:
            # Without a buffer: data that could not be written to a full disk would raise again at every later use.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (open as long as this object exists)
            weakref.finalize(self, self._file.close)
        return self._file
