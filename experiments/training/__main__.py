"""`python -m experiments.training NAME -o FOLDER`: train a tiny model of the small world from nothing."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.training.card import CARD, COMMAND
from experiments.training.dial import NAME, train_on_dial
from experiments.training.habits import train_habit
from experiments.training.trainer import train as train_model
from ggss import errors
from ggss.cli import explained
from ggss.cli.arguments import Force, say
from ggss.errors import InputError
from ggss.files import check_folder, marked
from ggss.smallworld import short_name
from ggss.smallworld.bias_questions import HABITS

training = typer.Typer()


@training.command()
def train(
    name: Annotated[
        str, typer.Argument(help="llava-vicuna, llava-mistral, pixtral, qwen3-vl, entangled, abstaining or guessing.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write the model to.")],
    seed: Annotated[
        int, typer.Option(help="Of the weights, the pictures and the drawn labels.", **errors.SEED.bounds)
    ] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads; the weights depend on it.", **errors.THREADS.bounds)] = 2,
    separation: Annotated[
        float | None,
        typer.Option(
            help="Train a model of the dial instead (llava-vicuna only): how far race and gender lie apart from all "
            "else, from 0 (half of it in their directions) to 1.",
            **errors.SHARE.bounds,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Train one of the tiny models from nothing: about twenty minutes. One of the dial or with a habit takes less."""
    if separation is not None and short_name(name) != NAME:
        raise InputError(f"the models of the dial are of the class of {NAME}, seen {name!r}: leave out --separation")
    check_folder(out, COMMAND, marked(COMMAND, CARD), force)
    if short_name(name) in HABITS:
        say(train_habit(short_name(name), out, seed=seed, threads=threads))
    elif separation is None:
        say(train_model(name, out, seed=seed, threads=threads))
    else:
        say(train_on_dial(separation, out, seed=seed, threads=threads))


if __name__ == "__main__":
    try:
        training()
    except InputError as error:
        code, sentence = explained(error)
        typer.echo(sentence, err=True)
        raise SystemExit(code) from None
