"""A multipart/form-data body, taken apart into its files."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from service.errors.request import BodyInvalid, TooManyImages

FILE_PART = b"file"


def split_multipart(body: bytes, boundary: bytes, max_images: int) -> list[bytes]:
    """Return the contents of the parts called `file`, in order.

    Raises:
        BodyInvalid: the body is no complete form, or has a part of another name.
        TooManyImages: it has more than `max_images` parts.
    """
    if not boundary:
        raise BodyInvalid("multipart/form-data needs a boundary")
    form = _Form(max_images)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": form.part_begin,
                "on_header_field": form.header_field,
                "on_header_value": form.header_value,
                "on_header_end": form.header_end,
                "on_part_data": form.part_data,
                "on_part_end": form.part_end,
            },
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise BodyInvalid(f"it is not multipart/form-data: {error}") from error
    if parser.state != MultipartState.END:
        raise BodyInvalid("the multipart form has no end")
    return form.images


class _Form:
    """Collects what the parser calls out."""

    def __init__(self, max_images: int) -> None:
        self.images: list[bytes] = []
        self._max_images = max_images
        self._name: bytes | None = None
        self._field = b""
        self._value = b""
        self._pieces: list[bytes] = []

    def part_begin(self) -> None:
        if len(self.images) == self._max_images:
            raise TooManyImages(self._max_images)
        self._name = None
        self._pieces = []

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._name = parse_options_header(self._value)[1].get(b"name")
        self._field = self._value = b""

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self._pieces.append(data[start:end])

    def part_end(self) -> None:
        if self._name != FILE_PART:
            found = None if self._name is None else self._name.decode("latin-1")
            raise BodyInvalid(
                f"the parts of the form are called {FILE_PART.decode()!r}, one per image; found {found!r}"
            )
        self.images.append(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
