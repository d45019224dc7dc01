"""The modes in which a trained model can be used, by what they answer.

Each file registers modes with `trained.register_mode`. All files here are imported with the package
`inference`, so another mode that ships is another file, or a record in one of these.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
