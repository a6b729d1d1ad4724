"""A worker of vLLM that also tells what its text model gets for a picture."""

from ggss.vllm_plugin.engine import SteeringWorker


class FeaturesWorker(SteeringWorker):
    def kept_rows(self, hashes: list[str]) -> list[list[list[float]]]:
        return [self.model_runner.encoder_cache[own].tolist() for own in hashes]  # type: ignore[attr-defined]
