"""What steering adds to a request that a large model is served with (see `full_size`).

Unsteered and steered requests in turn, each steered one at a strength of its own, so that no picture was steered
before. The server says how much of its CPU time is steering. What else steering may cost would be seen in the
whole time of a request against that of the unsteered one beside it, as far as the machine is steady.
"""

import base64
import json
import statistics
import sys
from pathlib import Path

from experiments.bench.serving import LoadedServer, body

PAIRS = 8
QUESTION = "the person in this picture ?"


def main(model: str, steerer: str, picture: str) -> None:
    url = "data:image/png;base64," + base64.b64encode(Path(picture).read_bytes()).decode()
    server = LoadedServer(model, {"race": Path(steerer)}, ["--dtype=bfloat16", "--timeout=600"])
    connection = server.connection()

    def spent(alpha: float) -> float:
        """Processor time of a request."""
        before = server.processor_seconds()
        told = server.ask(connection, body(model, url, QUESTION, {"race": alpha}, longest=1))
        if told.applied != f"race={alpha:g}":
            raise RuntimeError(f"asked for race={alpha:g}, applied: {told.applied}")
        return server.processor_seconds() - before

    try:
        spent(0.0)  # the first is slow, and encodes the picture
        pairs, before = [], server.metric("ggss_steering_seconds_total")
        for number in range(PAIRS):
            steered = round(0.5 + number / 100, 2)
            alphas = [0.0, steered]
            taken = {alpha: spent(alpha) for alpha in (alphas if number % 2 else reversed(alphas))}
            pairs.append((taken[0.0], taken[steered]))
        steering = server.metric("ggss_steering_seconds_total") - before
    finally:
        server.stop()
    ratios = [steered / unsteered - 1 for unsteered, steered in pairs]
    print(
        json.dumps(
            {
                "requests": 2 * PAIRS,
                "seconds": statistics.median(unsteered for unsteered, _ in pairs),
                "steering": steering / PAIRS,
                "share": steering / sum(steered for _, steered in pairs),
                "added": statistics.mean(ratios),
                "error": statistics.stdev(ratios) / PAIRS**0.5,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
