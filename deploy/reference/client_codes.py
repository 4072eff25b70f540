"""The Python client's errors, one for each code of the gateway's."""

from http import HTTPStatus

from service.errors.catalog import IMAGE_CODES, errors_with_code
from service.errors.gateway import GatewayError

HEAD = """\
# Written by `python -m deploy.reference.make` from the gateway's errors: change those.
\"\"\"One error for each code of a gateway's problems.\"\"\"

from torchgate_client.errors import Overloaded, RequestRefused, Unavailable
"""
IMAGE = """\
class ImageRejected(
    RequestRefused,
    codes=({codes}),
):
    \"\"\"The request's only image cannot be used; `code` says why.\"\"\"
"""


def client_codes() -> str:
    """Return the module's text."""
    kinds = sorted(errors_with_code(), key=lambda each: each.__name__)
    listed = "".join(f'\n        "{code}",' for code in sorted(IMAGE_CODES))
    return "\n\n".join([HEAD, *map(_kind, kinds), IMAGE.format(codes=f"{listed}\n    ")])


def _kind(error: type[GatewayError]) -> str:
    base = "Unavailable" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "RequestRefused"
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        base = "Overloaded"
    meaning = (error.__doc__ or "").splitlines()[0]
    return f'class {error.__name__}({base}, codes=("{error.code}",)):\n    """{meaning}"""\n'
