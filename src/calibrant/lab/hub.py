"""Access to the Hugging Face hub."""

import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

from calibrant._text import to_one_line
from calibrant.types import InputError


def is_hub_reachable() -> bool:
    """Return whether the Hugging Face hub answers within 5 seconds. Its client would retry for 30."""
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
def wrap_hub_errors(name: str) -> Generator[None]:
    """Turn the errors of Transformers into an `InputError` that says what cannot be loaded."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:  # some tokenizers need further packages
        raise InputError(
            f"Cannot load {name} ({to_one_line(error)}). Without a network, give its folder.", code="hub_unavailable"
        ) from None
