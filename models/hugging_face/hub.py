"""Uploads an exported directory to the Hugging Face hub.

For example:

    repository = open_repository("me/my-quickstart")     # before the export, since it may fail
    push("exported", repository)                         # "https://huggingface.co/me/my-quickstart"
"""

import os
from typing import Any, NamedTuple


class Repository(NamedTuple):
    name: str  # "OWNER/NAME"
    api: Any  # huggingface_hub.HfApi


def open_repository(name: str) -> Repository:
    """Returns a repository of the hub after checking its name and the login. `push` creates it.

    Raises ValueError if the name is not OWNER/NAME, if you are not logged in, or if the hub cannot
    be reached. Raises ModuleNotFoundError if `huggingface_hub` is not installed.
    """
    from huggingface_hub import HfApi  # imported here since it is an extra
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
    except (OSError, HTTPError) as error:  # from the hub or the network
        refused = isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)
        if refused or isinstance(error, LocalTokenNotFoundError):
            message = f"You are not logged in to the hub ({error}): run `hf auth login` first."
        else:
            message = f"The hub cannot be reached ({error}): try again later."
        raise ValueError(message) from error
    return Repository(name, api)


def check_empty(folder: str | os.PathLike) -> None:
    """Raises ValueError if a folder holds any files, which `push` would upload too."""
    if os.path.isdir(folder) and (others := sorted(os.listdir(folder))):
        raise ValueError(
            f"{folder} holds {others[0]}, which would also be pushed to the hub: export to a new "
            "directory (--to=hf:DIR)."
        )


def push(folder: str | os.PathLike, repository: Repository) -> str:
    """Uploads the files of a folder as one commit, and returns the address of the repository.

    If the repository does not exist, it is created as a private repository. Raises ValueError if
    the hub rejects the upload or cannot be reached.
    """
    from huggingface_hub.errors import HTTPError  # imported here since it is an extra

    try:
        address = repository.api.create_repo(repository.name, private=True, exist_ok=True)
        repository.api.upload_folder(repo_id=repository.name, folder_path=os.fspath(folder))
    except (OSError, HTTPError) as error:
        raise ValueError(
            f"The model is exported to {folder}, but the upload to {repository.name} failed "
            f"({error}): try again with `hf upload {repository.name} {folder} --private`."
        ) from error
    return str(address)
