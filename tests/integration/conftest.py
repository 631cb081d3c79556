"""A gateway in this process: one that a module's tests share, or one of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from graphs import GRAPHS as DEMOS
from tests.integration.api import Api, serving
from tests.integration.listening import listening, sdk
from tests.integration.small_graphs import GRAPHS


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS) as served:
        yield served


@pytest.fixture(scope="module")
async def demos(
    anyio_backend: tuple[str, dict[str, bool]],
    module_database_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[AsyncOpenAI]:
    """The unchanged SDK at a gateway that serves the demonstration graphs over HTTP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FERMATA_DATA_DIR", str(tmp_path_factory.mktemp("state")))
        async with listening(module_database_url, DEMOS) as url, sdk(url) as client:
            yield client
