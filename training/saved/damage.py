"""Whether an error of reading a checkpoint shows that its data is damaged."""

import json
import re

from ...settings.system_errors import failure_of
from ...settings.user_errors import causes

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Messages of tensorstore about data that it cannot decode or find, and about failing storage. Some
# decoding errors have another status or none, so they are recognized by their words.
_DAMAGE_MESSAGE = re.compile("(DATA_LOSS|NOT_FOUND|OUT_OF_RANGE): |.*(Error decoding |ZSTD_)")
_STORAGE_MESSAGE = re.compile(
    "UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|ABORTED"
    "|Allocation error|os_error_code='(?!(2|20|21)')"
)


class DamageError(ValueError):
    """The data that was read differs from the data that was saved."""


def shows_damage(error: BaseException | None) -> bool:
    """Returns whether a reading error, or one of its causes, shows that the data is damaged.

    Damaged data is missing, cannot be decoded, or has a wrong checksum. Other errors may come from
    the storage, the network, missing permissions, or another version of a library.

    >>> [shows_damage(e) for e in (FileNotFoundError(), ValueError("DATA_LOSS: CRC-32C"))]
    [True, True]
    >>> shows_damage(ValueError("FAILED_PRECONDITION: ZSTD_decompressStream() failed"))
    True
    >>> shows_damage(ValueError("Error opening 'zarr3' driver: Error decoding b-tree node: …"))
    True
    >>> [shows_damage(e) for e in (PermissionError(), ValueError("UNAVAILABLE: 503"))]
    [False, False]
    >>> [shows_damage(e) for e in (AttributeError("no such name"), TypeError("an argument"))]
    [False, False]
    """
    is_damaged = False
    for cause in causes(error):
        is_system_error = isinstance(cause, OSError) and not isinstance(cause, _ABSENT)
        if is_system_error or _STORAGE_MESSAGE.search(str(cause)):
            return False
        undecoded = isinstance(cause, (DamageError, json.JSONDecodeError, UnicodeDecodeError))
        is_absent = isinstance(cause, _ABSENT)
        is_damaged |= undecoded or is_absent or bool(_DAMAGE_MESSAGE.match(str(cause)))
    return is_damaged


def first_line(error: BaseException) -> str:
    """Returns the reason of an error, or of the error behind an error of Orbax, in one line."""
    if "due to incompatible handler" in str(error) and error.__cause__ is not None:
        error = error.__cause__  # the real error, which Orbax's message does not mention
    for cause in causes(error):  # Orbax raises errors of its own type for errors of the system
        if failure := failure_of(cause):
            return failure.reason
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
