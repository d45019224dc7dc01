"""Attention mechanisms computed by kernels, and the code that the kernels share.

All files in this folder are imported with `models`. To add a mechanism, add a file that registers a
record of `models.attention_mechanisms`.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
