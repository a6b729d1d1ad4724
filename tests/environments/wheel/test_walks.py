"""The four walks of docs/walks.md, as they stand on the page, with the wheel alone (`make test-wheel`)."""

import os
import re
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "walks.md").read_text(encoding="utf-8")
SECTIONS = [section.split("\n", 1) for section in PAGE.split("\n## ")[1:]]
WALKS = {name: "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)) for name, text in SECTIONS}


def test_there_are_four_and_what_is_installed_is_the_wheel():
    assert len(WALKS) == 4
    assert all(script.strip() for script in WALKS.values())
    import ggss

    assert Path(sys.prefix) in Path(ggss.__file__).parents
    assert not any("experiments" in str(file) for file in files("ggss") or [])


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_needs_no_step_that_is_not_on_the_page(name, tmp_path):
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "HF_HUB_OFFLINE": "1"}
    walk = subprocess.run(
        ["bash", "-e", "-c", WALKS[name]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert walk.returncode == 0, walk.stdout[-2000:] + walk.stderr[-2000:]
