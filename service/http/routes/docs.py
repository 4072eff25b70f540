"""The API's documentation: Swagger UI, from this machine's files."""

import base64
import hashlib
from collections.abc import Callable, Coroutine
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse

# Relative addresses hold behind a proxy's prefix, too. The validator would be a service on the internet.
SCRIPT = (
    'SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, '
    'layout: "BaseLayout", presets: [SwaggerUIBundle.presets.apis]});'
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>torchgate's API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>{script}</script>
</body>
</html>
"""
# Only this origin's files and the one inline script.
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self' '{script}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
# Another release of the package may have other files behind the same names.
CACHED = {"cache-control": "max-age=3600"}


def docs_routes() -> APIRouter:
    """Return the routes of the documentation, none of which is part of what it documents."""
    routes = APIRouter(include_in_schema=False)
    folder = Path(str(files("fastapi_swagger.resources")))
    page = PAGE.format(script=SCRIPT)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    headers = {"content-security-policy": POLICY.format(script=f"sha256-{digest}"), "cache-control": "no-cache"}

    @routes.get("/docs")
    async def docs() -> HTMLResponse:
        """Show the API in a browser, with a place to try it."""
        return HTMLResponse(page, headers=headers)

    for name, media_type in MEDIA_TYPES.items():
        routes.add_api_route(f"/docs/{name}", _file(folder / name, media_type), response_class=FileResponse)
    return routes


def _file(path: Path, media_type: str) -> Callable[[], Coroutine[Any, Any, FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(path, media_type=media_type, headers=CACHED)

    return send
