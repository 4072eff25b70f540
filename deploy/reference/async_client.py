"""The client for asyncio and trio, made from the other one."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "client" / "torchgate_client" / "client.py"
NOTE = "# Written by `python -m deploy.reference.make` from client.py: change that file.\n"
CHANGES = (
    (r'"""The client."""', '"""The client for asyncio and trio."""'),
    (r"^import time\n", ""),
    (r"^import httpx\n", "import anyio\nimport httpx\n"),
    (r"class Client\(Sender\)", "class AsyncClient(Sender)"),
    (r"httpx\.Client", "httpx.AsyncClient"),
    (r"^    def (?!__init__)", "    async def "),
    (r"__enter__", "__aenter__"),
    (r"__exit__", "__aexit__"),
    (r"self\.close\(\)", "await self.close()"),
    (r"self\._client\.close\(\)", "await self._client.aclose()"),
    (r"(?<!await )self\.(send|ready)\(", r"await self.\1("),
    (r"await self\._client\.request|self\._client\.request", "await self._client.request"),
    (r"time\.sleep\(", "await anyio.sleep("),
    (r"time\.monotonic\(\)", "anyio.current_time()"),
    (r"Keep one and share it among threads: it reuses its connections\.", "Keep one: it reuses its connections."),
)


def async_client() -> str:
    """Return the module's text."""
    found = SOURCE.read_text()
    for pattern, replacement in CHANGES:
        found = re.sub(pattern, replacement, found, flags=re.MULTILINE)
    return NOTE + found
