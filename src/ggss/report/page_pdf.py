"""A report as PDF, printed by a Chromium if this machine has one."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 300


def browser() -> str | None:
    """The Chromium on this machine's path, if any."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def print_pdf(page: Path, target: Path) -> str:
    """Print a page; returns why it did not work, or nothing."""
    program = browser()
    if program is None:
        return f"no Chromium was found ({', '.join(NAMES)})"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.pdf"
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to sandbox for root
        command = [program, "--headless", "--disable-gpu", *sandbox, f"--user-data-dir={folder}/profile"]
        command += ["--no-pdf-header-footer", f"--print-to-pdf={made}", page.resolve().as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{program} failed: {type(error).__name__}"
        if not made.is_file():
            return f"{program} wrote nothing"
        shutil.copyfile(made, target)
    return ""
