from tests.training.conftest import compiled_once

__all__ = ["compiled_once"]
