"""docs/tutorial.md as a program: its blocks of sh and python are run one after another, in the order in which they are read."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from demo.servers import REPOSITORY

PAGE = REPOSITORY / "docs" / "tutorial.md"
BLOCK_SECONDS = 300.0


@dataclass(frozen=True)
class Block:
    """A fenced block of the page: the number of its section, its language ("" for what is only shown), its text."""

    section: int
    language: str
    text: str

    @property
    def runs_make(self) -> bool:
        """`make demo` and `make stop`, which other tests run."""
        return self.language == "sh" and self.text.startswith("make ")


def blocks() -> Iterator[Block]:
    """In order."""
    section = 0
    for line in re.finditer(r"^## (\d+)\. |^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if line[1]:
            section = int(line[1])
        else:
            yield Block(section, line[2], line[3])


@dataclass
class Desk:
    """Where a reader of the tutorial sits: a folder with .venv, include and the demo's .demo, and one shell after another.

    What one block exports the next one sees.
    """

    folder: Path
    env: Mapping[str, str]
    printed: list[tuple[Block, str]] = field(default_factory=list)

    def sit_down(self) -> None:
        (self.folder / ".venv").symlink_to(sys.prefix)
        (self.folder / "include").symlink_to(REPOSITORY / "include")

    def run(self, block: Block) -> str:
        """What a block prints, errors too.

        Raises:
            AssertionError: one of its commands failed.
        """
        code, text = self.try_to(block)
        assert code == 0, f"section {block.section}:\n{block.text}\n{text[-3000:]}"
        self.printed.append((block, text))
        return text

    def try_to(self, block: Block) -> tuple[int, str]:
        """Exit code and what is printed, of a block that may fail."""
        done = subprocess.run(
            self._command(block), cwd=self.folder, env=dict(self.env), stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BLOCK_SECONDS, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def kill_once_there_is(self, block: Block, pattern: str) -> bool:
        """SIGKILL to a block's only command when a file is there that was not. False: it had ended by itself."""
        before = set(self.folder.glob(pattern))
        command = self._command(Block(block.section, block.language, f"exec {block.text}"))
        with (self.folder / "killed.log").open("w") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=dict(self.env), stdout=log, stderr=log)
            while process.poll() is None:
                if set(self.folder.glob(pattern)) - before:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    return True
                time.sleep(0.001)
        return False

    def said(self, section: int) -> list[str]:
        """What the blocks of a section printed, in order."""
        return [text for block, text in self.printed if block.section == section]

    def _command(self, block: Block) -> list[str]:
        if block.language == "python":
            return [".venv/bin/python", "-c", block.text]
        return ["bash", "-euc", f"[ ! -f exported ] || . ./exported\n{block.text}\nexport -p > exported\n"]
