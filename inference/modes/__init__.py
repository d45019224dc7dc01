"""The modes in which a trained model can be used, grouped by the kind of answer.

Each file registers modes with `trained.register_mode`. All files in this folder are imported with
the package `inference`. To add a mode, register it in one of them or in a new file.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
