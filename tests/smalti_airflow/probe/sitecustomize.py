"""Gives a job that is started with this directory on PYTHONPATH the stage `probe`, which does what a test asks of it."""

import os
import sys
from types import ModuleType

if "SMALTI_PROBE" in os.environ and "smalti.jobs" in sys.orig_argv:
    import time

    from smalti.accounting import Report
    from smalti.errors import InputError, LakeError
    from smalti.jobs import registry
    from smalti.settings import SourceRun

    def run(lake: object, settings: SourceRun) -> Report:
        """`settings.source.description` is a small program: words with numbers, separated by semicolons."""
        for step in settings.source.description.split(";"):
            word, _, value = step.strip().partition(" ")
            if word == "sleep":
                time.sleep(float(value))
            elif word == "print":
                print(value, flush=True)
            elif word == "wait":  # until the file is there
                while not os.path.exists(value):
                    time.sleep(0.1)
            elif word == "first":  # whoever makes the file stays for long
                try:
                    os.close(os.open(value, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                time.sleep(600)
            elif word == "once":  # fails unless the file is there, and makes it
                try:
                    os.close(os.open(value, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                raise LakeError("this is the first time", value, "Try again")
            elif word == "input_error":
                raise InputError("the probe was told to find a mistake", "probe.yaml:7", "Mend it")
            elif word == "crash":
                raise RuntimeError(value)
            elif word == "die":
                os.kill(os.getpid(), 9)
        return Report(stage="probe")

    module = ModuleType("smalti_probe_stage")
    module.run = run  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    registry.STAGES["probe"] = registry.Stage("probe", "smalti_probe_stage:run", SourceRun)
