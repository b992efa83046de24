"""Let the torchvision that PyPI has be imported beside a torch built for CPUs.

PyPI's torchvision is built for CUDA: beside a CPU's torch its compiled half does not load, and its Python half then fails at
import, because it describes two operators (nms, qnms) that nobody declared. Processors of pictures use neither, so it is
enough to declare them. This has to happen in every process before the first `import torchvision`, and vLLM starts processes of
its own: hence a .pth file, which Python reads at each start, and a hook, because torch itself takes seconds to import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Sequence
from types import ModuleType

DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_kept: list[object] = []  # an operator is gone when the Library that declared it is


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Finds nothing. Asked for torchvision it declares the operators, once, and leaves the search to the others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            if not importlib.metadata.version("torchvision").endswith("+cpu"):  # that build declares them itself
                import torch

                library = torch.library.Library("torchvision", "FRAGMENT")
                for schema in DECLARED:
                    library.define(schema)
                _kept.append(library)
        return None


sys.meta_path.insert(0, DeclareOperators())
