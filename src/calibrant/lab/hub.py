"""Access to the Hugging Face hub."""

import urllib.error
import urllib.request


def is_hub_reachable() -> bool:
    """Return whether the hub answers within five seconds; its own client would retry for half a minute."""
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
