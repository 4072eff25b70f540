"""The page that a problem's `type` leads to: each code with its meaning and the next step."""

from html import escape

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from service.admin.status.page import hash_source
from service.errors.catalog import IMAGE_CODES, errors_with_code

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }
:target { outline: 2px solid; outline-offset: .5rem }
"""
POLICY = "default-src 'none'; style-src '{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>torchgate: errors</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Errors of torchgate</h1>
<p>A problem's <code>code</code>, what it means, and what to do next.</p>
"""


def error_routes() -> APIRouter:
    """Return the route of the page. It is open, as what it says is."""
    routes = APIRouter(tags=["errors"])
    document = _page()
    headers = {"content-security-policy": POLICY.format(style=hash_source(STYLE)), "cache-control": "no-cache"}

    @routes.get("/errors", response_class=HTMLResponse)
    async def errors() -> HTMLResponse:
        """Explain every error code: its meaning and the next step."""
        return HTMLResponse(document, headers=headers)

    return routes


def _page() -> str:
    known = sorted(errors_with_code(), key=lambda each: (each.status, each.code))
    entries = [(each.code, f" ({each.status})", (each.__doc__ or "").splitlines()[0], each.hint) for each in known]
    entries += [(code, " (an image)", meaning, "") for code, meaning in IMAGE_CODES.items()]
    return HEAD.format(style=STYLE) + "".join(_entry(*each) for each in entries) + "</main>\n</body>\n</html>\n"


def _entry(code: str, kind: str, meaning: str, hint: str) -> str:
    step = f"<p><b>Next step:</b> {escape(hint)}</p>\n" if hint else ""
    return (
        f'<section id="{escape(code)}">\n<h2><code>{escape(code)}</code>{kind}</h2>\n<p>{escape(meaning)}</p>\n{step}'
        "</section>\n"
    )
