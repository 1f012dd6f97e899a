import pytest
from assessed_pages import reported

from calibrant.assessment import Assessment


@pytest.fixture(scope="session")
def over() -> tuple[Assessment, str]:
    """Return the assessment of an overconfident model and its page with all pictures, which all tests share."""
    return reported(2.0)
