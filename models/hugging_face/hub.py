"""The Hugging Face hub: an exported directory becomes a repository there.

repository = open_repository("me/my-quickstart")     # before the export: it may be refused
push("exported", repository)                          # "https://huggingface.co/me/my-quickstart"
"""

import os
from typing import Any, NamedTuple


class Repository(NamedTuple):
    name: str  # "OWNER/NAME"
    api: Any  # huggingface_hub.HfApi


def open_repository(name: str) -> Repository:
    """Returns a repository of the hub, which is not made yet.

    Raises ValueError for a name that is not OWNER/NAME, without a login, and without a network.
    Raises ModuleNotFoundError without `huggingface_hub`.
    """
    from huggingface_hub import HfApi  # here: an extra
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        owned = "/" in name
        why = "it has no OWNER"
    except ValueError as error:
        owned = False
        why = str(error)
    if not owned:
        raise ValueError(
            f"Got the repository {name!r}, expected OWNER/NAME, such as me/my-model: {why}"
        )
    api = HfApi()
    try:
        api.whoami()
    except (OSError, HTTPError) as error:  # of the hub, or of the network
        refused = isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)
        if refused or isinstance(error, LocalTokenNotFoundError):
            words = f"The hub knows nobody here ({error}): `hf auth login` first."
        else:
            words = f"The hub cannot be asked ({error}): try again when it can."
        raise ValueError(words) from error
    return Repository(name, api)


def check_empty(folder: str | os.PathLike) -> None:
    """Raises ValueError for a folder that holds something, which `push` would upload too."""
    if os.path.isdir(folder) and (others := sorted(os.listdir(folder))):
        raise ValueError(
            f"{folder} holds {others[0]}, which would be pushed to the hub too: export to a new "
            "directory (--to=hf:DIR)."
        )


def push(folder: str | os.PathLike, repository: Repository) -> str:
    """Uploads the files of a folder, as one commit; returns the address of the repository.

    One that is not there is made, for its owner alone to see. Raises ValueError where the hub
    refuses it, or cannot be reached.
    """
    from huggingface_hub.errors import HTTPError  # here: an extra

    try:
        address = repository.api.create_repo(repository.name, private=True, exist_ok=True)
        repository.api.upload_folder(repo_id=repository.name, folder_path=os.fspath(folder))
    except (OSError, HTTPError) as error:
        raise ValueError(
            f"{folder} is exported, and the hub does not take it as {repository.name} ({error}): "
            f"`hf upload {repository.name} {folder} --private` tries that again."
        ) from error
    return str(address)
