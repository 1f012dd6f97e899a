"""Whether the hub of Hugging Face is there to be asked."""

import urllib.error
import urllib.request


def is_hub_reachable() -> bool:
    """Ask it once, for at most five seconds: its own clients retry for half a minute. Honors proxies."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return True  # that is an answer
    except OSError:
        return False
    return True
