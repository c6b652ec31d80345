"""A gateway for the tests of the doors."""

from collections.abc import AsyncIterator

import pytest
from fake_gateway import Gateway, run_gateway
from fake_pool import EchoPool


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with run_gateway(EchoPool()) as running:
        yield running
