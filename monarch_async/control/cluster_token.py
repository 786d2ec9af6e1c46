"""The cluster token: the secret that clients and agents prove to each other that they hold."""

import os
from pathlib import Path

#: The variable that holds the token where no file is named.
TOKEN_VARIABLE = "MONARCH_ASYNC_TOKEN"


def read_token(path: str | None) -> bytes:
    """Return the cluster token from a file that only its owner can read, or from the environment.

    Raises ValueError saying what is wrong.
    """
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise ValueError(f"no cluster token: give a token file, or set {TOKEN_VARIABLE}")
        return token.encode()
    file = Path(path)
    try:
        mode = file.stat().st_mode & 0o777
        token = file.read_text().strip()
    except OSError as error:
        raise ValueError(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the token file {path} holds no text") from None
    if mode & 0o077:
        raise ValueError(f"the token file {path} can be read by others (mode {mode:04o}): chmod 600 {path}")
    if not token:
        raise ValueError(f"the token file {path} is empty")
    return token.encode()


def take_token(path: str | None) -> bytes:
    """Read the token and remove it from the environment, so that no process started from here inherits it."""
    token = read_token(path)
    os.environ.pop(TOKEN_VARIABLE, None)
    return token
