"""What is sent: every image another one, every request new, and the same image for a server that takes JSON."""

import base64
import io
import json
from pathlib import Path

from PIL import Image, ImageChops

from benchmarks.load.endpoint import FRESH_HEADERS, MARKER
from benchmarks.workloads.images import JPEG_SIZE, NUM_JPEGS, as_json, write_jpegs


def test_jpegs_are_colour_of_another_size_and_all_different(tmp_path: Path) -> None:
    write_jpegs(tmp_path)
    contents = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert len(set(contents)) == NUM_JPEGS
    for content in contents[:10]:
        image = Image.open(io.BytesIO(content))
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", JPEG_SIZE)
        assert content.count(MARKER.encode()) == 1


def test_the_number_of_a_request_changes_no_pixel(tmp_path: Path) -> None:
    write_jpegs(tmp_path)
    content = (tmp_path / "003.jpg").read_bytes()
    text = as_json(content)
    number = "0123456789abcdef01234567"
    assert len(number) == len(MARKER)
    assert text.count(MARKER) == 1
    sent = base64.b64decode(json.loads(text.replace(MARKER, number))["image"], validate=True)
    for other in (sent, content.replace(MARKER.encode(), number.encode())):
        pixels = (Image.open(io.BytesIO(each)).convert("RGB") for each in (content, other))
        assert ImageChops.difference(*pixels).getbbox() is None


def test_headers_are_what_a_proxy_sends() -> None:
    version, trace, parent, flags = FRESH_HEADERS["traceparent"].replace(MARKER, "a" * len(MARKER)).split("-")
    assert (version, len(trace), len(parent), flags) == ("00", 32, 16, "01")
