"""The numbers that were published with the method, as printed, for tests to hold the code against.

Each line: the method, then for each model MCQ x 1000, 2AFC and nurse/doctor with the change in percent that is
printed below each (`--`: undefined, the baseline is zero; `*`: no readable answers), then Avg.
"""

import re
from dataclasses import dataclass

MODELS = ("Pixtral-12B", "LLaVA-Vicuna-7B", "LLaVA-Mistral-7B", "Qwen3-VL-4B")
TASKS = ("mcq", "2afc", "nurse-doctor")
BASELINE = "Baseline"

BIAS = """
Baseline              | 25.75 0.243 0.425 0 | 8.70 0.000 0.600 0 | 26.87 0.000 0.625 0 | 14.65 0.368 0.400 0
INLP (Eucl.)          | 15.05(-42) 0.131(-46) 0.350(-18) -35 | 1.87(-79) 0.000(--) 0.625(+4) -37 | 10.52(-61) 0.000(--) 0.375(-40) -50 | 5.71(-61) 0.279(-24) 0.375(-6) -31
INLP (sph.)           | 0.47(-98) 0.297(+22) 0.350(-18) -31 | 2.05(-76) 0.000(--) 0.025(-96) -86 | 9.87(-63) 0.000(--) 0.050(-92) -78 | 11.00(-25) 0.238(-35) 0.050(-88) -49
MeanDiff-SVM (Eucl.)  | 25.75(+0) 0.247(+2) 0.425(+0) +1 | 0.86(-90) 0.000(--) 0.600(+0) -45 | 11.05(-59) 0.000(--) 0.625(+0) -29 | 5.24(-64) 0.368(+0) 0.375(-6) -23
MeanDiff-SVM (sph.)   | 17.73(-31) 0.248(+2) 0.425(+0) -10 | 2.76(-68) 0.000(--) 0.625(+4) -32 | 13.67(-49) 0.000(--) 0.625(+0) -25 | 14.02(-4) 0.412(+12) 0.375(-6) +0
MeanDiff-LR (Eucl.)   | 25.75(+0) 0.247(+2) 0.425(+0) +1 | 3.09(-64) 0.000(--) 0.600(+0) -32 | 12.14(-55) 0.000(--) 0.625(+0) -27 | 5.77(-61) 0.368(+0) 0.375(-6) -22
MeanDiff-LR (sph.)    | 25.75(+0) 0.239(-2) 0.425(+0) -1 | 6.15(-29) 0.000(--) 0.625(+4) -13 | 21.21(-21) 0.000(--) 0.625(+0) -11 | 13.56(-7) 0.400(+9) 0.400(+0) +0
BendVLM (Eucl.)       | 13.03(-49) 0.267(+10) 0.125(-71) -37 | 2.71(-69) 0.000(--) 0.625(+4) -32 | 10.81(-60) 0.000(--) 0.625(+0) -30 | 5.31(-64) 0.374(+2) 0.350(-13) -25
BendVLM (sph.)        | 112.03(+335) 0.000(-100) 0.000(-100) +45 | 0.00(-100) 0.452(--) * -100 | 2.83(-89) 0.000(--) 0.550(-12) -51 | 2.86(-80) 0.152(-59) 0.425(+6) -44
Pooled SVD (Eucl.)    | 10.30(-60) 0.173(-29) 0.425(+0) -30 | 9.91(+14) 0.000(--) 0.025(-96) -41 | 5.81(-78) 0.000(--) 0.300(-52) -65 | 6.49(-56) 0.190(-48) 0.100(-75) -60
Pooled SVD (sph.)     | 15.54(-40) 0.098(-60) 0.125(-71) -57 | 1.36(-84) 0.000(--) 0.025(-96) -90 | 11.20(-58) 0.000(--) 0.050(-92) -75 | 8.37(-43) 0.173(-53) 0.150(-62) -53
Per-token SVD (Eucl.) | 24.59(-4) 0.172(-29) 0.522(+23) -4 | 4.26(-51) 0.000(--) 0.600(+0) -25 | 2.08(-92) 0.000(--) 0.625(+0) -46 | 4.35(-70) 0.245(-33) 0.475(+19) -28
Per-token SVD (sph.)  | 32.84(+28) 0.227(-7) 0.400(-6) +5 | 2.05(-76) 0.000(--) 0.625(+4) -36 | 2.74(-90) 0.000(--) 0.625(+0) -45 | 4.19(-71) 0.286(-22) 0.450(+12) -27
GGSS (Ours)           | 16.85(-35) 0.096(-61) 0.125(-71) -55 | 1.36(-84) 0.000(--) 0.025(-96) -90 | 8.48(-68) 0.000(--) 0.050(-92) -80 | 5.10(-65) 0.154(-58) 0.175(-56) -60
"""  # noqa: E501

# Avg with one decimal, from the tables of added baselines and of matched gates.
FINE_AVERAGES = {
    "GGSS (Ours)": (-55.3, -90.1, -80.2, -59.9),
    "INLP (sph.)": (-31.2, -86.1, -77.6, -49.3),
    "Pooled SVD (Eucl.)": (-29.6, -41.0, -65.2, -59.7),
    "Pooled SVD (sph.)": (-56.6, -90.1, -75.2, -52.8),
}


@dataclass(frozen=True)
class Printed:
    """A printed number: everything within half a unit of its last digit is printed so."""

    value: float
    half: float

    @classmethod
    def read(cls, text: str) -> "Printed":
        decimals = len(text.partition(".")[2])
        return cls(float(text), 0.5 * 10.0**-decimals)


@dataclass(frozen=True)
class Cell:
    """A method on a model: its printed values and changes by task (None where none is printed), and Avg."""

    values: dict[str, Printed | None]
    changes: dict[str, Printed | None]
    average: Printed


def bias() -> dict[str, dict[str, Cell]]:
    """By method, then by model."""
    table = {}
    for line in BIAS.strip().splitlines():
        method, *models = (part.strip() for part in line.split("|"))
        table[method] = {model: _cell(text) for model, text in zip(MODELS, models, strict=True)}
    return table


def _cell(text: str) -> Cell:
    *of_tasks, average = text.split()
    values: dict[str, Printed | None] = {}
    changes: dict[str, Printed | None] = {}
    for task, entry in zip(TASKS, of_tasks, strict=True):
        read = re.fullmatch(r"([\d.]+)(?:\(([-+]\d+|--)\))?", entry)
        values[task] = Printed.read(read[1]) if read else None
        changes[task] = Printed.read(read[2]) if read and read[2] not in (None, "--") else None
    return Cell(values, changes, Printed.read(average))
