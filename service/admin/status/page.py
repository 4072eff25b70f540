"""Assembles the status page into one document, with its Content-Security-Policy."""

import base64
import hashlib
from importlib.resources import files

SCRIPTS = (
    "numbers.js",
    "plots.js",
    "figures.js",
    "strokes.js",
    "targets.js",
    "demo.js",
    "commands.js",
    "feedback.js",
    "sign_in.js",
    "changes.js",
    "rollouts.js",
    "quality.js",
    "events.js",
    "details.js",
    "example.js",
    "stream.js",
)
# Nothing from other origins, inline only what is hashed here, no frames, no forms.
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data: blob:; style-src '{style}'; script-src '{script}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def assemble(*, asks_for_key: bool) -> tuple[bytes, str]:
    """Return the page as one document and its policy. With `asks_for_key` it has a field for the key."""
    folder = files("service.admin.status")
    style = folder.joinpath("page.css").read_text("utf-8")
    script = "\n".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    document = folder.joinpath("page.html").read_text("utf-8")
    for mark, text in (("{{asks_for_key}}", str(asks_for_key).lower()), ("{{style}}", style), ("{{script}}", script)):
        assert document.count(mark) == 1, f"page.html has not one {mark}"
        document = document.replace(mark, text)
    return document.encode(), POLICY.format(style=hash_source(style), script=hash_source(script))


def hash_source(text: str) -> str:
    """Return what a Content-Security-Policy allows an inline text by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
