"""From a model and a suite to a run."""

from ggss.analysis.run import Run, Source
from ggss.models.reading import Reading
from ggss.probes.steered_model import BATCH, SteeredModel
from ggss.probes.suites import Suite
from ggss.version import library_versions

DIGITS = 6  # of a probability; more would not change any statistic


def ask(
    model: SteeredModel,
    suite: Suite,
    task: str,
    max_new_tokens: int | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
    show: bool | None = None,
) -> Run:
    """Ask a task of a suite. max_new_tokens: the longest answer, if not the suite's. seed: only recorded."""
    items = suite.items(task)
    if model.cache.from_features:
        model.cache.preload([picture for item in items for picture in item.images], show)
    readings = model.read(items, max_new_tokens or suite.max_new_tokens(task), task, batch_size, show)
    said = [answer_of(reading) for reading in readings]
    return Run(
        task,
        items,
        tuple(answer for answer, _ in said),
        tuple(own for _, own in said),
        source(model, suite, task, seed),
    )


def answer_of(reading: Reading) -> tuple[str, tuple[float, ...]]:
    """A reading as it is stored: the raw answer, and the options' probabilities to a fixed number of digits."""
    return reading.answer, tuple(round(p, DIGITS) for p in reading.probabilities)


def source(model: SteeredModel, suite: Suite, task: str, seed: int = 0) -> Source:
    """Where the answers of a model to a suite's task come from."""
    steerers = [steerer for steerer, _ in model.steerings]
    steered = (
        {}
        if not steerers
        else {
            "method": "+".join(steerer.method for steerer in steerers),
            "attribute": "+".join(_spelled(steerer.attribute) for steerer in steerers),
            "steerer": "+".join(steerer.content_hash for steerer in steerers),
            "alpha": model.alpha,
        }
    )
    return Source(
        model=model.vlm.name,
        suite=suite.name,
        suite_hash=suite.hash(task),
        fingerprint=model.vlm.fingerprint,
        seed=seed,
        versions=library_versions(),
        **steered,
    )


def _spelled(attribute: str | tuple[str, ...]) -> str:
    return attribute if isinstance(attribute, str) else " x ".join(attribute)
