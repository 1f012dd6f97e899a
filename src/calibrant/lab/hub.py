"""Access to the Hugging Face hub."""

import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

from calibrant._core.text import describe_error
from calibrant._core.types import InputError


def is_hub_reachable() -> bool:
    """Return whether the Hugging Face hub answers within 5 seconds, and is not switched off by HF_HUB_OFFLINE.

    This is asked first, as the hub's own client would retry for 30 seconds.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return True  # an error status is an answer, too
    except OSError:
        return False
    return True


@contextmanager
def wrap_hub_errors(name: str, local_copy: str = "its folder") -> Generator[None]:
    """Turn any error in the block into an `InputError` that `name` cannot be loaded.

    The message suggests to give `local_copy` instead.
    """
    try:
        yield
    except Exception as error:  # of any type; some tokenizers need further packages
        raise InputError(
            f"Cannot load {name} ({describe_error(error)}). Without a network, give {local_copy}.",
            code="hub_unavailable",
        ) from None
