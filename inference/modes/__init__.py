"""The modes in which a trained model can be used, grouped by the kind of answer.

Each file registers modes with `trained.register_mode`. The package `inference` imports all files of
this folder, including new ones.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
