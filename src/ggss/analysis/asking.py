"""From a gallery and what is to be asked to the records of a run."""

from collections.abc import Mapping

from ggss.analysis import records
from ggss.probes.steered_model import BATCH, Gallery
from ggss.probes.suites import Suite
from ggss.version import library_versions


def ask(
    gallery: Gallery,
    tasks: Mapping[str, Suite],
    steerer: records.Used | None = None,
    max_new_tokens: int | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
) -> list[records.Record]:
    """Ask every task of its suite, in order. `steerer` says what the gallery is steered by; `seed` is only recorded.

    max_new_tokens: the longest answer, if not the suite's.
    """
    kept: list[records.Record] = []
    for task, suite in tasks.items():
        items = suite.items(task)
        readings = gallery.read(items, max_new_tokens or suite.max_new_tokens(task), task, batch_size)
        run = {
            "suite": suite.name,
            "suite_hash": suite.hash(task),
            "model": gallery.vlm.name,
            "fingerprint": gallery.vlm.fingerprint,
            "steerer": steerer,
            "alpha": gallery.alpha,
            "seed": seed,
            "versions": library_versions(),
        }
        kept += [records.of(task, i, r, gallery.suffix, **run) for i, r in zip(items, readings, strict=True)]
    return kept
