"""The parameters of a header such as `multipart/form-data; boundary=x`, read in time that grows with its length."""

import re

# RFC 9110, section 5.6.6. The name is a token, the value a token or a quoted string.
PARAMETER = re.compile(rb';[ \t]*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))[ \t]*', re.DOTALL)
QUOTED_PAIR = re.compile(rb'\\(["\\])')


def read_parameters(header: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the value in lower case and its parameters, by names in lower case; reads up to the first broken one."""
    value = header.partition(b";")[0]
    parameters: dict[bytes, bytes] = {}
    position = len(value)
    while (found := PARAMETER.match(header, position)) is not None:
        name, quoted, token = found.groups()
        parameters[name.lower()] = token if quoted is None else QUOTED_PAIR.sub(rb"\1", quoted)
        position = found.end()
    return value.strip(b" \t").lower(), parameters
