"""vLLM's processes end with the one that started them, also if that was killed: orphans would keep their memory."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """From now on this process ends as soon as its parent has; nothing happens in a process without one."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="ggss-parent", daemon=True).start()
