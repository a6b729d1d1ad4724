"""A random model of a real one's dimensions, through every command: time, memory, and steering's share of the time.

    python -m bench.full_size [--size 4b|tiny] [-o DIR]      writes docs/full-size.md (4b only)

The weights are random, so the answers mean nothing; their number, shapes and dtype are Qwen3-VL-4B's. The processor
is the small world's, with the real size of patches; its vocabulary of some words is padded to the real one. Each
command is a process of its own, as a user runs it. A step that was measured is kept in the folder: stopped and run
again, with --keep, it goes on with the next one.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "full-size.md"

WORDS = [*"ABCD", "first", "second", "nurse", "doctor", "yes", "no", "the", "person", "in", "this", "picture"]


@dataclass(frozen=True)
class Dimensions:
    """Of a Qwen3-VL."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int
    intermediate: int
    vocabulary: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_intermediate: int
    deepstack: tuple[int, ...]
    side: int  # of the pictures that are asked about


SIZES = {
    "4b": Dimensions(2560, 36, 32, 8, 128, 9728, 151_936, 1024, 24, 16, 4096, (5, 11, 17), 224),
    "tiny": Dimensions(64, 2, 4, 2, 16, 128, 512, 64, 3, 4, 128, (0, 1), 128),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="4b")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "full-size-out")
    parser.add_argument("--doc", type=Path, help="where to write the page; docs/full-size.md for the 4b")
    parser.add_argument(
        "--as-is", action="store_true", help="measure nothing more: write what there is, and what not"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder: the 4b's model has 9.6 GB")
    given = parser.parse_args()
    size, out = SIZES[given.size], given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model = out / "model"
    building = built(size, model)
    manifest = pictures(out / "faces", size.side)
    report = measured(model, manifest, out, given.as_is)
    page = written(given.size, size, building, report)
    doc = given.doc or (DOC if given.size == "4b" else None)
    if doc:
        doc.write_text(page, encoding="utf-8")
    print(page)
    if not given.keep:
        shutil.rmtree(out)


def built(size: Dimensions, folder: Path) -> "Step | None":
    """Save a random model in bfloat16; None if it was there."""
    if (folder / "done").exists():
        return None
    from ggss.smallworld.architectures import build

    start = time.monotonic()
    _, processor = build("qwen3-vl", WORDS, width=64, layers=1, deepstack=(0,))
    processor.image_processor.patch_size = 16
    processor.image_processor.size = {"shortest_edge": 64 * 64, "longest_edge": size.side * size.side}
    ids = {name: processor.tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in TOKENS}
    config = hf.Qwen3VLConfig(
        vision_config=hf.Qwen3VLVisionConfig(
            hidden_size=size.vision_hidden,
            depth=size.vision_layers,
            num_heads=size.vision_heads,
            intermediate_size=size.vision_intermediate,
            out_hidden_size=size.hidden,
            deepstack_visual_indexes=list(size.deepstack),
        ),
        text_config=hf.Qwen3VLTextConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.key_value_heads,
            head_dim=size.head,
            intermediate_size=size.intermediate,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 5_000_000.0,
                "mrope_interleaved": True,
                "mrope_section": [size.head // 2 - 2 * (size.head // 6), size.head // 6, size.head // 6],
            },
        ),
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        dtype="bfloat16",
    )
    model = filled(config)
    model.save_pretrained(folder, max_shard_size="2GB")
    processor.save_pretrained(folder)
    (folder / "done").touch()
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = time.monotonic() - start
    return Step("build and save", seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1000, "")


TOKENS = ("vision_start", "image_pad", "vision_end", "video_pad")


@torch.no_grad()
def filled(config: Any) -> Any:
    """The model with random weights, made in bfloat16 from the start: there is never a copy in float32."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = hf.Qwen3VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(usual)
    model.to_empty(device="cpu")  # buffers, such as the frequencies of positions, are not saved: loading makes them
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
    model.generation_config = hf.GenerationConfig(pad_token_id=0, eos_token_id=2)
    return model


def pictures(folder: Path, side: int) -> Path:
    """Eight pictures of noise: two people in each of two occupations, of two races."""
    from ggss.data.manifests import write_manifest

    rows = []
    people = product(("cook", "ceo"), ("1", "2"), ("Asian", "Black"))
    folder.mkdir(exist_ok=True)
    for number, (occupation, identity, race) in enumerate(people):
        path = folder / f"{number}.png"
        Image.effect_noise((side // 8, side // 8), 60 + number).convert("RGB").resize((side, side)).save(path)
        labels = {"occupation": occupation, "identity": identity, "race": race}
        rows.append({"path": path.name, **labels})
    write_manifest(rows, folder / "faces.csv")
    return folder / "faces.csv"


@dataclass(frozen=True)
class Step:
    """A command that was run: how long it took, its processors' time, and the most memory it had, in bytes."""

    name: str
    seconds: float
    processor: float
    peak: int
    said: str


def run(out: Path, as_is: bool, name: str, *arguments: object) -> Step | None:
    """Run a command to its end. Linux counts the peak of all children together, so each has a parent of its own.

    as_is: None if it was not run before.
    """
    kept = out / f"{name}.json"
    if kept.exists():
        return Step(**json.loads(kept.read_text()))
    if as_is:
        return None
    watcher = [sys.executable, "-c", WATCHER, *map(str, arguments)]
    start = time.monotonic()
    done = subprocess.run(
        watcher, env=os.environ | {"GGSS_CACHE": str(out / "cache")}, capture_output=True, text=True
    )
    seconds = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"{name} failed ({done.returncode}): {done.stderr[-2000:]}")
    *said, used = done.stdout.rstrip("\n").split("\n")
    processor, peak = map(float, used.split())
    print(
        f"{name}: {seconds:.0f} s, {processor:.0f} s of processors, {peak / 1e6:.1f} GB", file=sys.stderr, flush=True
    )
    step = Step(name, seconds, processor, int(peak * 1000), "\n".join(said))
    kept.write_text(json.dumps(asdict(step)))
    return step


WATCHER = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); sys.stdout.flush(); "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(code)"
)


def measured(model: Path, manifest: Path, out: Path, as_is: bool) -> dict[str, Step | None]:
    """Every command once, each in a process of its own."""
    ggss = [sys.executable, "-c", "from ggss.cli import main; main()"]
    where = ["--dtype", "bfloat16"]
    steerer, face, plan = out / "steerer", manifest.parent / "0.png", out / "plan.yaml"
    few = ["--images", manifest, "--attribute", "race", "--exclude", "occupation=ceo", "-o", steerer, "--force"]
    asked = [model, face, "yes or no ?", "--steer", steerer, "--alpha", "0", "--max-new-tokens", "2", "--json"]
    (out / "wording.yaml").write_text(yaml.safe_dump(WORDING))
    plan.write_text(yaml.safe_dump(study(model, manifest, out / "wording.yaml")))
    commands = {
        "discover, 4 pictures": [*ggss, "discover", model, *few, *where],
        ASK: [*ggss, "ask", *asked, *where],
        BATCH: [sys.executable, "-m", "bench.full_size_batch", model, steerer, manifest],
        DOCTOR: [*ggss, "doctor", model, *where, "--json"],
        PRODUCTS: [sys.executable, "-c", PRODUCT_TIMES],
        "study plan": [*ggss, "study", "plan", plan, "--no-measure"],
        "study run, 2 cells of 4 questions": [*ggss, "study", "run", plan, "-o", out / "study"],
    }
    return {name: run(out, as_is, name, *command) for name, command in commands.items()}


GOAL = 120  # seconds of the doctor
ASK, BATCH, DOCTOR, PRODUCTS = "ask at alpha 0", "one probe batch", "doctor", "products"

# A product as the doctor has them, 140 rows by a matrix of the text model: processor time in milliseconds.
PRODUCT_TIMES = """
import json, time, torch
from torch.nn.functional import linear
torch.set_num_threads(1)
rows, weight = torch.randn(140, 2560).bfloat16(), torch.randn(9728, 2560).bfloat16()
wide = weight.float()
def took(product):
    product()
    start = time.process_time()
    for _ in range(5):
        product()
    return 200 * (time.process_time() - start)
print(json.dumps({
    "bfloat16": took(lambda: linear(rows, weight)),
    "converted": took(lambda: linear(rows.float(), weight.float()).bfloat16()),
    "float32": took(lambda: linear(rows.float(), wide)),
}))
"""
WORDING = {
    "mcq": {
        "about": "race",
        "questions": {
            "salary": {
                "text": "the person in this picture ?\n{options}",
                "options": dict(zip("ABCD", "ABCD", strict=True)),
            }
        },
    }
}


def study(model: Path, manifest: Path, wording: Path) -> dict[str, Any]:
    """One task, unsteered and steered at one strength."""
    return {
        "suite": {"name": "reflect", "images": str(manifest), "wording": str(wording)},
        "discovery": str(manifest),
        "models": [{"name": str(model), "dtype": "bfloat16"}],
        "methods": ["none", "ggss"],
        "alphas": [1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "batch_size": 4,
    }


def written(name: str, size: Dimensions, building: Step | None, report: dict[str, Step | None]) -> str:
    steps = ({"build and save": building} if building else {}) | report
    steps.pop(PRODUCTS, None)
    lines = [
        "# A model of true size",
        "",
        f"`make full-size`: a Qwen3-VL with random weights in the dimensions of Qwen3-VL-{name.upper()}: "
        f"{size.layers} layers of {size.hidden}, a vision tower of {size.vision_layers} x {size.vision_hidden}, "
        f"deepstack at {', '.join(map(str, size.deepstack))}, in bfloat16. Its answers mean nothing; its time and "
        "memory do.",
        "",
        f"Measured on {platform.processor() or platform.machine()}, {os.cpu_count()} cores that others used at the "
        f"same time (load average {os.getloadavg()[2]:.0f} at the end){_lacks()}, without an accelerator; torch "
        f"{torch.__version__}. A LLaVA-NeXT of the 7B's dimensions, 14 GB in bfloat16, was not tried.",
        "",
        "| step | time | processor time | peak memory |",
        "| --- | --- | --- | --- |",
    ]
    for what, step in steps.items():
        seen = (
            f"{step.seconds:.0f} s | {step.processor:.0f} s | {step.peak / 1e9:.1f} GB"
            if step
            else "not measured | |"
        )
        lines.append(f"| {what} | {seen} |")
    lines += [
        "",
        "Times include starting Python and loading the weights. The processor time is that of all threads together; "
        "it depends less than the time on what else the machine does.",
        "",
        *(line for find in (_examined, _asked, _batch, _products) for line in find(report)),
        "",
    ]
    return "\n".join(lines)


def _lacks() -> str:
    """Without instructions for bfloat16 a product of matrices takes many times as long."""
    return "" if "bf16" in _cpu() else " and that have no instructions for bfloat16"


def _cpu() -> str:
    """What the processor can do; elsewhere than on Linux it is taken to have the instructions."""
    told = Path("/proc/cpuinfo")
    return told.read_text() if told.exists() else "bf16"


def _examined(report: dict[str, Step | None]) -> list[str]:
    if not (step := report[DOCTOR]):
        return []
    found = json.loads(step.said)
    checks = "; ".join(f"{what}: {seen}" for what, _, seen in found["checks"])
    alone = step.processor / (os.cpu_count() or 1)
    return [
        f"- The doctor finds it {'healthy' if found['healthy'] else 'NOT healthy'}: {checks}. Its processor time is "
        f"{alone / 60:.1f} minutes of {os.cpu_count()} cores that do nothing else; the goal of 2 minutes is "
        f"{'met' if step.seconds <= GOAL else 'not met here' if alone > GOAL else 'met only if they do'}."
    ]


def _products(report: dict[str, Step | None]) -> list[str]:
    """What the missing instructions cost."""
    if not (step := report[PRODUCTS]):
        return []
    found = json.loads(step.said)
    told = ", ".join(f"{found[name]:.0f} ms {how}" for name, how in HOW.items())
    lines = [f"- A product of 140 rows with a matrix of 2560 x 9728, on one thread: {told}."]
    if "bf16" not in _cpu():
        lines.append(
            f"- So on this processor bfloat16 products take {found['bfloat16'] / found['float32']:.1f} times as long "
            f"as float32 ones: all but {found['float32'] / found['bfloat16']:.0%} of the time in products is the "
            "missing instructions. The doctor therefore converts each matrix for its product "
            "(`ggss.models.products`); the other steps do not."
        )
    return lines


HOW = {"bfloat16": "in bfloat16", "converted": "converted to float32 first", "float32": "in float32"}


def _asked(report: dict[str, Step | None]) -> list[str]:
    if not (step := report[ASK]):
        return []
    found = json.loads(step.said)
    same = "identical to" if found["unsteered"] == found["steered"] else "NOT that of"
    return [f"- Asked at alpha 0, the answer is {same} the unsteered one."]


def _batch(report: dict[str, Step | None]) -> list[str]:
    if not (step := report[BATCH]):
        return []
    found = json.loads(step.said.split("\n")[-1])
    return [
        f"- It has {found['parameters'] / 1e9:.2f} billion weights, {2 * found['parameters'] / 1e9:.1f} GB.",
        f"- A batch of {found['questions']} questions about {found['tokens']} visual tokens each: "
        f"{found['seconds']:.1f} s of processor time, of which steering takes {1000 * found['steering']:.1f} ms, "
        f"**{found['steering'] / found['seconds']:.2%}** (goal: under 1 %); encoding its pictures took "
        f"{found['encoding']:.1f} s.",
        f"- In features that are kept, alpha 0 gives logits {found['identical']}.",
    ]


if __name__ == "__main__":
    main()
