"""`make readme`: run the demo and put its real output and pictures where README and docs show them."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ggss.smallworld.sets import contact_sheet

ROOT = Path(__file__).parent.parent
START, END = "<!-- demo: written by `make readme` -->", "<!-- /demo -->"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ggss = str(Path(sys.executable).with_name("ggss"))
        out = Path(folder) / "demo-out"
        environment = {"COLUMNS": "100", "PATH": "/usr/bin:/bin", "HOME": folder}
        seen = subprocess.run([ggss, "demo", "-o", out], capture_output=True, text=True, check=True, env=environment)
        shutil.copy(out / "demo.png", ROOT / "docs" / "demo.png")
        text = "\n".join(line.rstrip() for line in seen.stdout.replace(str(out), "demo-out").splitlines())
    contact_sheet().save(ROOT / "docs" / "contact-sheet.png", optimize=True)
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(START)
    readme.write_text(f"{before}{START}\n```text\n{text.strip()}\n```\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
