"""Every error that a gateway can answer, for those who list them."""

from collections.abc import Iterator

from service.errors import admin, overload, request
from service.errors.gateway import GatewayError

MODULES = (admin, overload, request)  # that hold branches of the tree
# Of single images; handlers give most of them.
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


def errors_with_code() -> Iterator[type[GatewayError]]:
    """Yield each kind of error that has a code of its own."""
    assert all(module.GatewayError is GatewayError for module in MODULES)
    yield from _below(GatewayError)


def _below(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for each in kind.__subclasses__():
        if "code" in vars(each):
            yield each
        yield from _below(each)
