"""What `make bench` measures in processes of their own: that these start, and say what was asked."""

from experiments.bench import steer
from experiments.bench.timing import in_own_process


def test_steering_needs_at_most_one_copy_of_the_tokens():
    seen = in_own_process(steer.report_memory)
    assert seen["tokens"] == 2880 * 4096 * 4
    assert 0.9 < seen["extra"] / seen["tokens"] <= 1.1, "a new tensor for the result, and little more"
