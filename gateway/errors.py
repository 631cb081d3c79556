"""The error tree. Every class knows its answer; one handler in `gateway.http` renders them.

    FermataError                     500 server_error
    ├── InvalidRequest               400 invalid_value
    │   │                                the request is wrong; repeating it cannot help
    │   ├── PreviousResponseNotFound 400 previous_response_not_found
    │   ├── InterruptAlreadyAnswered 400 interrupt_already_answered
    │   ├── InvalidInterruptAnswer   400 invalid_interrupt_answer
    │   ├── ConnectionLimitReached   400 websocket_connection_limit_reached
    │   ├── Unauthenticated          401 invalid_api_key
    │   ├── Forbidden                403 forbidden
    │   │   └── ReviewerNotAllowed   403 reviewer_not_allowed
    │   ├── ModelNotFound            404 model_not_found
    │   ├── NotFound                 404 not_found
    │   ├── MethodNotAllowed         405 method_not_allowed
    │   ├── InterruptExpired         410 interrupt_expired
    │   ├── InterruptClosed          410 interrupt_closed
    │   ├── BodyTooLarge             413 request_too_large
    │   ├── ConversationLocked       400 conversation_locked
    │                                    retry: a response works on it; OpenAI's status and code
    │   └── IdempotencyKeyReused     422 idempotency_key_reused
    ├── ResponseInProgress           409 response_in_progress
    │                                    retry: somebody is working on it
    ├── Unavailable                  503 service_unavailable
    │                                    retry: the database is away, or shutting down
    ├── RunFailed                    500 run_failed, what `response.failed` carries
    ├── EffectError                  500 effect_error
    │   │                                the run stalls: the same answer may be sent again
    │   ├── EffectFailed             500 effect_failed: it failed before, and that is on record
    │   ├── EffectUncertain          500 effect_uncertain: nobody knows; an operator decides
    │   ├── EffectInProgress         409 effect_in_progress: a living process is at it
    │   ├── EffectConflict           500 effect_conflict: the same key with other arguments
    │   └── EffectNotApproved        500 effect_not_approved
    ├── LeaseLost                    503 lease_lost: another process took the run over
    └── StartupError                     printed by the command line, never sent

The envelope is OpenAI's: `{"error": {"message", "type", "param", "code"}}`. The SDKs retry 408,
409, 429 and 5xx, so `retryable` says whether a retry can help and the renderer adds
`x-should-retry: false` or `Retry-After` accordingly (design: the wire, "Errors").
"""

from __future__ import annotations

from typing import ClassVar


class FermataError(Exception):
    """Base of all errors that a client may see.

    `status` is the HTTP status, `type` and `code` go into the envelope, `retry_after` is in seconds
    (None: a retry cannot help).
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "server_error"
    type: ClassVar[str] = "server_error"
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        # One printable line, whatever a client put into an id that is told back.
        self.message = "".join(char if char.isprintable() else " " for char in message)
        super().__init__(self.message)
        self.param = param
        self.error_code = code or self.code


class InvalidRequest(FermataError):
    """The request cannot be served as it is; `param` names the one field that is wrong.

    `call_id` is the question whose answer is refused, where it is one: for the audit.
    """

    status = 400
    code = "invalid_value"
    type = "invalid_request_error"
    call_id: str | None = None


class PreviousResponseNotFound(InvalidRequest):
    """`previous_response_id` is unknown, expired, not stored or another tenant's: all look
    alike."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id '{response_id}' not found.", param="previous_response_id"
        )


class InterruptAlreadyAnswered(InvalidRequest):
    """Another answer was accepted first; it stands. A 400, because SDKs retry 409."""

    code = "interrupt_already_answered"


class InvalidInterruptAnswer(InvalidRequest):
    """The output breaks the question's contract; the question stays open."""

    code = "invalid_interrupt_answer"


class ModelNotFound(InvalidRequest):
    """No graph is served under this model name."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{model}' does not exist.", param="model")


class NotFound(InvalidRequest):
    """Unknown route or id, or an id of another tenant."""

    status = 404
    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    """The route exists, the method does not."""

    status = 405
    code = "method_not_allowed"


class Unauthenticated(InvalidRequest):
    """No credentials, or none that are valid; which of the two is all that is told."""

    status = 401
    code = "invalid_api_key"


class Forbidden(InvalidRequest):
    """The credentials are good, but not for this."""

    status = 403
    code = "forbidden"


class ReviewerNotAllowed(Forbidden):
    """This principal may not answer this question; it stays open for those who may."""

    code = "reviewer_not_allowed"


class InterruptExpired(InvalidRequest):
    """The question's time is over and its run is gone."""

    status = 410
    code = "interrupt_expired"


class InterruptClosed(InvalidRequest):
    """The run was cancelled or deleted while the question was open."""

    status = 410
    code = "interrupt_closed"


class BodyTooLarge(InvalidRequest):
    """The body is longer than FERMATA_MAX_BODY_BYTES."""

    status = 413
    code = "request_too_large"


class ConnectionLimitReached(InvalidRequest):
    """A WebSocket was open for FERMATA_WEBSOCKET_LIMIT; a new one may go on. Open Responses names
    the code."""

    code = "websocket_connection_limit_reached"

    def __init__(self) -> None:
        super().__init__("This connection has reached its time limit; open a new one.")


class ConversationLocked(InvalidRequest):
    """Another response works on the conversation; ask again when it has ended.

    The status is OpenAI's, since clients that wait and retry know it by that (openai-agents); for
    the SDKs, which repeat no 400 by themselves, the renderer says that a retry helps.
    """

    code = "conversation_locked"
    retry_after = 1

    def __init__(self) -> None:
        super().__init__(
            "Another process is currently operating on this conversation."
            " Please retry in a few seconds.",
            param="conversation",
        )


class IdempotencyKeyReused(InvalidRequest):
    """The Idempotency-Key came with another body before."""

    status = 422
    code = "idempotency_key_reused"


class ResponseInProgress(FermataError):
    """The run is moving; ask again in a moment."""

    status = 409
    code = "response_in_progress"
    type = "conflict_error"
    retry_after = 1


class Unavailable(FermataError):
    """PostgreSQL cannot be reached, or the process is shutting down."""

    status = 503
    code = "service_unavailable"
    retry_after = 2


class LeaseLost(FermataError):
    """This process no longer owns the run: its lease expired and another process took it over."""

    status = 503
    code = "lease_lost"
    retry_after = 1


class RunFailed(FermataError):
    """The graph raised, or produced what cannot be told; carried by `response.failed`."""

    code = "run_failed"


class EffectError(FermataError):
    """An effect was not carried out, or not again. `key` is its business key."""

    code = "effect_error"

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class EffectFailed(EffectError):
    """The call failed and that is on record: a replay is told the same and calls nothing.

    `kind` is the name of the exception's class, `reason` its text; the message has only the former,
    because it goes to the client.
    """

    code = "effect_failed"

    def __init__(self, message: str, *, key: str, kind: str, reason: str) -> None:
        super().__init__(message, key=key)
        self.kind = kind
        self.reason = reason


class EffectUncertain(EffectError):
    """It was begun and its outcome was never recorded. `fermata effects resolve` decides."""

    code = "effect_uncertain"


class EffectInProgress(EffectError):
    """Another process, which is alive, is carrying it out, and did not end in time."""

    status = 409
    code = "effect_in_progress"
    type = "conflict_error"
    retry_after = 1


class EffectConflict(EffectError):
    """The key stands for other arguments: two operations were given one name."""

    code = "effect_conflict"


class EffectNotApproved(EffectError):
    """It needs an approval, and this run has no such answer on record."""

    code = "effect_not_approved"


class StartupError(FermataError):
    """The process cannot start; the command line prints the message and exits with 1."""

    code = "startup_error"
