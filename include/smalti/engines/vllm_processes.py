"""Processes that vLLM starts end with the one that started them.

vLLM computes in a process of its own (EngineCore). When whoever opened the engine is killed outright, it is not told: it would
wait for questions for ever, and hold its GPU. vLLM calls each plugin of the group `vllm.general_plugins` at the start of each
of its processes, before a model is loaded; `end_with_parent` is one (see pyproject.toml).
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import signal
import threading

GROUP = "vllm.general_plugins"
NAME = "smalti"


def end_with_parent() -> None:
    """In a process that multiprocessing started: watch its parent, and go when it has gone. Elsewhere: nothing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()  # waits on a pipe that only the parent can close, by whatever way it ends
        os.kill(os.getpid(), signal.SIGKILL)  # nothing in it is worth keeping, and a handler might wait for the parent

    threading.Thread(target=watch, name="smalti-end-with-parent", daemon=True).start()


def is_called() -> bool:
    """Whether vLLM will call it: smalti is installed, not only on the path, and VLLM_PLUGINS, where set, names it."""
    named = os.environ.get("VLLM_PLUGINS")
    installed = bool(importlib.metadata.entry_points(group=GROUP, name=NAME))
    return installed and (named is None or NAME in named.split(","))
