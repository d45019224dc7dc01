"""Attention mechanisms computed by kernels, and what these share.

All files here are imported with `models`, so another mechanism that ships is another file, which
registers a record of `models.attention_mechanisms`.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
