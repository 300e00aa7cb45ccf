"""Fixtures of the contract suites."""

import pytest
from contract_support import store_of


@pytest.fixture
async def store(server, exp_id):
    """Look into the store of the server under test, past the messagers."""
    opened = store_of(server, exp_id)
    yield opened
    await opened.close()
