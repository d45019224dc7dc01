from tests.training.conftest import quick_to_compile

__all__ = ["quick_to_compile"]
