"""docs/serving.md: its five commands work with vLLM, too."""

import five_commands


def test_the_five_commands_with_vllm(tmp_path):
    five_commands.check_answer(tmp_path, "--engine vllm")
