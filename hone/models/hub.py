"""Whether a model that is no folder here can be had from the hub, known in seconds: the hub's own client would try for
the better part of a minute."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hone.errors import UserError

SECONDS = 10.0  # for an answer of any kind
FILES = ("config.json", "tokenizer_config.json")  # either shows that the model was downloaded


def require_reachable(key: str, path: str) -> None:
    """Raises UserError if `path` is neither a folder nor downloaded already, and the hub cannot be asked for it. What a
    hub that answers says of it, loading reports."""
    if Path(path).expanduser().is_dir():
        return
    import huggingface_hub as hub

    if any(isinstance(hub.try_to_load_from_cache(path, file), str) for file in FILES):
        return
    problem = "HF_HUB_OFFLINE is set" if hub.constants.HF_HUB_OFFLINE else _silence(hub.hf_hub_url(path, FILES[0]))
    if problem is not None:
        raise UserError(
            f"{key}={path}: there is no such folder (the working directory is {Path.cwd()}), and a model of that name "
            f"cannot be looked up on the hub {hub.constants.ENDPOINT}: {problem}. Name a model folder, or download the "
            "model where there is a network."
        )


def _silence(url: str) -> str | None:
    """Why nobody answers at the address; None when somebody does, whatever they say."""
    try:
        urlopen(Request(url, method="HEAD"), timeout=SECONDS).close()
    except HTTPError:
        return None
    except OSError as error:
        return str(getattr(error, "reason", error))
    return None
