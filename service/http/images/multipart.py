"""A multipart/form-data body (RFC 7578), taken apart into its files.

It is searched, never walked byte by byte. Each place that looks like a boundary counts, and there may be no more of
them than images are allowed: so no body takes more than one look at each of its bytes.
"""

from service.errors.request import BodyInvalid, TooManyImages
from service.http.images.header_parameters import read_parameters
from service.http.images.steps import Steps, find

FILE_PART = b"file"
LONGEST_BOUNDARY = 70  # RFC 2046, section 5.1.1
LONGEST_HEAD = 4096  # of a part
MOST_HEADERS = 16  # of a part
LINE_END = b"\r\n"


def split_multipart(body: bytes, boundary: bytes, max_images: int) -> Steps[list[bytes]]:
    """Return the contents of the parts called `file`, in order.

    Raises:
        BodyInvalid: the body is no complete form, or has a part of another name.
        TooManyImages: it has more than `max_images` parts, or as many places that look like the begin of one.
    """
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise BodyInvalid(f"multipart/form-data needs a boundary of 1 to {LONGEST_BOUNDARY} characters")
    delimiter = LINE_END + b"--" + boundary
    start = 0 if body.startswith(delimiter) else -len(LINE_END)  # of the delimiter before the next part
    if not body.startswith(delimiter[-start:]):
        raise BodyInvalid("the multipart form does not begin with its boundary")
    images: list[bytes] = []
    num_delimiters = 1
    start += len(delimiter)
    while not body.startswith(b"--", start):
        if len(images) == max_images:
            raise TooManyImages(max_images)
        if not body.startswith(LINE_END, start):
            raise BodyInvalid("a boundary of the multipart form is not at the end of its line")
        content = _after_head(body, start)
        end = content
        while True:
            end = yield from find(body, delimiter, end)
            if end < 0:
                raise BodyInvalid("the multipart form has no end")
            num_delimiters += 1
            if num_delimiters > max_images + 1:
                raise TooManyImages(max_images)
            start = end + len(delimiter)
            if body.startswith((LINE_END, b"--"), start):
                break
            end = start  # it belongs to the content, although no sender should choose such a boundary
        images.append(body[content:end])
    return images


def _after_head(body: bytes, start: int) -> int:
    """Return where a part's content begins; `start` is the end of its boundary."""
    end = body.find(LINE_END * 2, start, start + LONGEST_HEAD)
    if end < 0:
        raise BodyInvalid(f"a part of the multipart form has no end of its headers within {LONGEST_HEAD} bytes")
    lines = body[start:end].split(LINE_END, MOST_HEADERS + 1)[1:]
    if len(lines) > MOST_HEADERS:
        raise BodyInvalid(f"a part of the multipart form has more than {MOST_HEADERS} headers")
    name = None
    for line in lines:
        field, colon, value = line.partition(b":")
        if not colon:
            raise BodyInvalid("a header in the multipart form has no colon")
        if field.strip().lower() == b"content-disposition":
            name = read_parameters(value)[1].get(b"name")
    if name != FILE_PART:
        found = None if name is None else name.decode("latin-1")
        raise BodyInvalid(f"the parts of the form are called {FILE_PART.decode()!r}, one per image; found {found!r}")
    return end + 2 * len(LINE_END)
