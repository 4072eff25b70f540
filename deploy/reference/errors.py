"""The page of errors: each code with its meaning and the next step."""

from collections.abc import Iterator
from http import HTTPStatus

from deploy.reference.form import page, table
from service.errors import admin, overload, request
from service.errors.gateway import GatewayError

MODULES = (admin, overload, request)  # which hold parts of the tree
INTRODUCTION = """\
Errors are `application/problem+json` (RFC 9457). Programs should look at `code`, which never changes its meaning. \
`detail` says what is wrong with this request, `hint` what to do next. `request_id` finds the request in the log.

```json
{"type": "about:blank", "title": "Not Found", "status": 404, "code": "model_not_found",
 "detail": "Unknown model 'cats'; served: digits.", "hint": "Use one of the served models; …", "request_id": "…"}
```

Answers with 429, and most with 503 and 504, have `Retry-After` in seconds. The causes of internal failures are \
shown only to callers who may read details; the log always has them."""
IMAGES = """\
## Images

A request fails as a whole only if its one image is unusable: then it is a 400 with the image's code. Otherwise an \
unusable image gets `{"error": {"code", "message"}}` in its place, and the others are answered."""
IMAGE_CODES = {
    "base64_invalid": "It is not base64, in a JSON request.",
    "image_empty": "It has 0 bytes.",
    "image_unrecognized": "Its format is unknown. Known are PNG, JPEG, GIF, WebP, BMP, TIFF, PPM, JPEG 2000 and AVIF.",
    "image_truncated": "It is cut off or corrupt.",
    "image_too_many_pixels": "It has more pixels than its model allows for its format.",
    "image_too_costly": "It takes more memory or time to decode than its pixels suggest.",
    "image_format_refused": "Its model does not take its format.",
    "image_unsupported": "It has floating-point pixels, or something else without an agreed meaning.",
    "tensor_invalid": "It is a `.npy` file of another type or shape than the contract's.",
    "decode_timeout": "It has more than a megapixel, and the smaller images of its batch took ten seconds to decode. "
    "Send it again.",
    "output_not_finite": "The model answered with a number that is not finite.",
    "request_invalid": "It came in a malformed packed request. Only direct callers of TorchServe can see this.",
}
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


def errors_with_code() -> Iterator[type[GatewayError]]:
    """Yield each kind of error that has a code of its own."""
    assert all(module.GatewayError is GatewayError for module in MODULES)
    yield from _below(GatewayError)


def _below(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for each in kind.__subclasses__():
        if "code" in vars(each):
            yield each
        yield from _below(each)


def _section(status: int, errors: list[type[GatewayError]]) -> str:
    parts = [f"## {status} {HTTPStatus(status).phrase}"]
    parts += [
        f"### `{error.code}` {{ #{error.code} }}\n\n{(error.__doc__ or '').splitlines()[0]}\n\n"
        f"**Next step:** {error.hint}"
        for error in errors
    ]
    return "\n\n".join(parts)
