"""`python(code, ...)`: as `python -c code ...`, but torch and transformers, which take seconds, are imported already.

A server process has imported them and nothing of ggss; it forks for each call. So registries are as in a new process,
and what a call does to its process, kill it too, ends with that.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

PRELOADED = (
    *("numpy", "pydantic", "rich.table", "typer", "yaml", "jinja2", "PIL.Image", "huggingface_hub.file_download"),
    *("torch", "safetensors.torch", "transformers"),
    *("transformers.models.auto.modeling_auto", "transformers.models.qwen3_vl.modeling_qwen3_vl"),
    *("transformers.models.qwen3_vl.processing_qwen3_vl", "transformers.models.smolvlm.processing_smolvlm"),
)
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(list(PRELOADED))


def python(
    code: str, *arguments: object, env: Mapping[str, str] = {}, path: Path | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process. env: variables besides those of this one. path: a folder on its path."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        words = [str(argument) for argument in arguments]
        places = [str(place) for place in (path, *sys.path) if place]
        process = FORKED.Process(
            target=_run, args=(code, words, dict(os.environ) | dict(env), places, str(cwd or os.getcwd()), out, err)
        )
        process.start()
        process.join()
        texts = [file.read_text() if file.exists() else "" for file in (out, err)]
    return subprocess.CompletedProcess(["python", "-c", code, *words], process.exitcode or 0, *texts)


def _run(code: str, words: list[str], env: dict[str, str], places: list[str], cwd: str, out: Path, err: Path) -> None:
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=False)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:], sys.argv[:] = places, ["-c", *words]
    main = sys.modules["__main__"] = ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
