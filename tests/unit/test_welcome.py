"""What `fermata serve` says once it listens: a request that works as it stands."""

from __future__ import annotations

from gateway.__main__ import _welcome

URL = "http://127.0.0.1:8000"


def test_the_request_has_credentials_only_where_they_are_asked_for() -> None:
    key = '-H "Authorization: Bearer $KEY"'
    assert key not in _welcome(URL, ["echo"], open_to_all=True)
    assert key in _welcome(URL, ["echo"], open_to_all=False)


def test_the_request_names_a_model_that_is_served() -> None:
    assert '"model": "echo"' in _welcome(URL, ["echo"], open_to_all=True)
    assert '"input": "Refund order ORDER-123"' in _welcome(
        URL, ["echo", "interruptible-approval"], open_to_all=True
    )
