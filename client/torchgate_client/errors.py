"""Errors of the client.

TorchgateError
├── Unreachable                no answer: no connection, or none in time
├── BadAnswer                  an answer that is none of a torchgate gateway
└── GatewayProblem             the gateway refused; `code`, `detail` and `hint` say why and what to do
    ├── RequestRefused         4xx: send it changed
    │   └── one for each code, in torchgate_client.codes
    ├── Overloaded             429: send it later
    │   └── ...
    └── Unavailable            5xx: send it later, or look at the gateway
        └── ...
"""

from typing import ClassVar


class TorchgateError(Exception):
    """Anything that goes wrong with a call."""


class Unreachable(TorchgateError):
    """The gateway did not answer: there is no connection, or the time is over."""


class BadAnswer(TorchgateError):
    """The answer is none of a torchgate gateway."""


class GatewayProblem(TorchgateError):
    """The gateway refused a call, or failed at it."""

    by_code: ClassVar[dict[str, type["GatewayProblem"]]] = {}

    def __init_subclass__(cls, codes: tuple[str, ...] = ()) -> None:
        cls.by_code.update(dict.fromkeys(codes, cls))

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str = "",
        request_id: str = "",
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}" + (f" {hint}" if hint else ""))
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds


class RequestRefused(GatewayProblem):
    """The request is wrong (4xx): send it changed."""


class Overloaded(GatewayProblem):
    """The gateway has too much to do, or you sent too much (429): send it later."""


class Unavailable(GatewayProblem):
    """The gateway or the model server failed (5xx): send it later, or look at the gateway."""
