"""What the server has done, as text that Prometheus reads."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds

_HELP = {
    "ggss_requests_total": ("counter", "Chat requests by status."),
    "ggss_steered_requests_total": ("counter", "Answered requests on which a steerer acted."),
    "ggss_prompt_tokens_total": ("counter", "Tokens of prompts, with those of images."),
    "ggss_completion_tokens_total": ("counter", "Tokens of answers."),
    "ggss_waiting_requests": ("gauge", "Requests that are not answered yet."),
    "ggss_ready": ("gauge", "1 if the model is loaded."),
    "ggss_worker_restarts_total": ("counter", "Processes of the model that died and were replaced."),
    "ggss_batches_total": ("counter", "Batches that the model has answered, each of one request or more."),
    "ggss_processor_seconds_total": ("counter", "Processor time of the model's process, all threads."),
    "ggss_steering_seconds_total": ("counter", "The part of it in which pictures were steered."),
    "ggss_feature_cache_bytes": ("gauge", "Bytes of encoded pictures that are kept."),
    "ggss_feature_cache_hits_total": ("counter", "Pictures that were encoded already."),
    "ggss_feature_cache_misses_total": ("counter", "Pictures that had to be encoded."),
    "ggss_request_seconds": ("histogram", "From a request's first byte to its answer's last."),
}
_FACTS = {
    "worker_restarts": "ggss_worker_restarts_total",
    "batches": "ggss_batches_total",
    "processor_seconds": "ggss_processor_seconds_total",
    "steering_seconds": "ggss_steering_seconds_total",
    "cached_bytes": "ggss_feature_cache_bytes",
    "cache_hits": "ggss_feature_cache_hits_total",
    "cache_misses": "ggss_feature_cache_misses_total",
}


class ServerMetrics:
    """Counts since the server was started."""

    def __init__(self) -> None:
        self.waiting = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    @property
    def mean_seconds(self) -> float:
        """Of the requests so far; 1 if there are none."""
        return self._seconds / sum(self._buckets) if any(self._buckets) else 1.0

    def request(self, status: int, seconds: float) -> None:
        self._counts["ggss_requests_total", f'{{status="{status}"}}'] += 1
        self._buckets[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def answer(self, strengths: Mapping[str, float], prompt_tokens: int, completion_tokens: int) -> None:
        for name, alpha in strengths.items():
            if alpha:
                self._counts["ggss_steered_requests_total", f'{{steerer="{name}"}}'] += 1
        self._counts["ggss_prompt_tokens_total", ""] += prompt_tokens
        self._counts["ggss_completion_tokens_total", ""] += completion_tokens

    def text(self, ready: bool, facts: Mapping[str, float]) -> str:
        """In Prometheus' text format, version 0.0.4."""
        samples = dict(self._counts) | {("ggss_waiting_requests", ""): self.waiting, ("ggss_ready", ""): int(ready)}
        samples |= {(_FACTS[name], ""): value for name, value in facts.items()}
        lines = []
        for name, (kind, said) in _HELP.items():
            lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value:g}" for (own, label), value in sorted(samples.items()) if own == name]
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'ggss_request_seconds_bucket{{le="{bound}"}} {total}')
        return "\n".join(
            [*lines, f"ggss_request_seconds_sum {self._seconds:g}", f"ggss_request_seconds_count {total}", ""]
        )
