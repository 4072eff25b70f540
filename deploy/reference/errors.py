"""The page of errors: each code with its meaning and the next step."""

from http import HTTPStatus

from deploy.reference.form import page, table
from service.errors.catalog import IMAGE_CODES, errors_with_code
from service.errors.gateway import GatewayError

INTRODUCTION = """\
Errors are `application/problem+json` (RFC 9457). Programs should look at `code`, which never changes its meaning. \
`detail` says what is wrong with this request, `hint` what to do next. `request_id` finds the request in the log. \
`type` leads to the code on the gateway's own page of errors, `/errors`.

```json
{"type": "/errors#model_not_found", "title": "Not Found", "status": 404, "code": "model_not_found",
 "detail": "Unknown model 'cats'; served: digits.", "hint": "Use one of the served models; …", "request_id": "…"}
```

Answers with 429, and most with 503 and 504, have `Retry-After` in seconds. The causes of internal failures are \
shown only to callers who may read details; the log always has them."""
IMAGES = """\
## Images

A request fails as a whole only if its one image is unusable: then it is a 400 with the image's code. Otherwise an \
unusable image gets `{"error": {"code", "message"}}` in its place, and the others are answered."""
BARE = """\
## Answers without a problem

The gateway closes a connection with a bare status line where no request can be read:

| status | when |
| --- | --- |
| 400 | The bytes are not HTTP, the target is no URL, or there is not exactly one `Host` (HTTP/1.1). |
| 408 | The head did not arrive within 30 s. |
| 414 | The URL has more than 8 KiB. |
| 431 | The head has more than 64 KiB or 128 headers, or trailers have more than 64 KiB. |
| 501 | The method is `CONNECT`, or the body has another transfer coding than `chunked`. |
| 505 | The version is not HTTP/1.0 or 1.1. |

Complete requests that came before it on the same connection are answered first."""


def errors_page() -> str:
    """Return the page."""
    by_status: dict[int, list[type[GatewayError]]] = {}
    for error in sorted(errors_with_code(), key=lambda each: (each.status, each.code)):
        by_status.setdefault(error.status, []).append(error)
    sections = [_section(status, errors) for status, errors in by_status.items()]
    codes = table(("code", "the image"), [(f"`{code}`", meaning) for code, meaning in IMAGE_CODES.items()])
    return page("Errors", INTRODUCTION, *sections, IMAGES, codes, BARE)


def _section(status: int, errors: list[type[GatewayError]]) -> str:
    parts = [f"## {status} {HTTPStatus(status).phrase}"]
    parts += [
        f"### `{error.code}` {{ #{error.code} }}\n\n{(error.__doc__ or '').splitlines()[0]}\n\n"
        f"**Next step:** {error.hint}"
        for error in errors
    ]
    return "\n\n".join(parts)
