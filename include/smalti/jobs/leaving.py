"""How a process of ours ends."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with an exit code that is told.

    After an error native threads (Arrow's readers) may still be at work, and now and then the interpreter's own end aborts on
    them: SIGABRT, exit code 134, where a caller must see 2. So an error ends the process at once, with everything printed.
    """
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(0)
