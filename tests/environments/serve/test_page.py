"""docs/serving.md: its five commands lead from nothing to an answer."""

import five_commands


def test_the_five_commands(tmp_path):
    commands = [line for line in five_commands.lines() if not line.startswith((" ", "export "))]
    assert [line.split()[0] for line in commands] == ["ggss", "ggss", "ggss", "curl", "printf"]
    five_commands.check_answer(tmp_path)
