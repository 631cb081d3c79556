"""Compactions: a history in one opaque item, to be sent instead of it. Pure.

Without a model nobody can say a history in fewer words, so the item carries it: packed, and read
again where it is sent. It is data and no secret: whoever changes it changes what he says was said,
which he may do with a plain history too, so it is neither encrypted nor signed. It needs no
storage here, and works with `store: false`.

As in OpenAI's API the user's messages stay outside, before the item; inside, a reference by content
holds each one's place. A client may strip their ids or take one away, and the rest is read all the
same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.wire import checks
from gateway.wire.encoding import Json, canonical, dumps, loads

MOST_PACKED = 10 * 2**20
"""Characters of a packed history: the bound of Open Responses for `encrypted_content`."""
MOST_UNPACKED = 64 * 2**20
"""Bytes that one may unpack to: a few kilobytes can be made that unpack to gigabytes."""

_MARK = "fermata1."


def pack(entries: Sequence[Json]) -> str:
    """Items, and references as strings, as text. Raises `InvalidRequest` if it is too long."""
    packed = zlib.compress(dumps(list(entries)).encode(), 6)
    text = _MARK + base64.urlsafe_b64encode(packed).decode()
    if len(text) > MOST_PACKED:
        message = f"The history is too long to be compacted: {len(text)} characters when packed."
        raise InvalidRequest(message, param="input", code="string_above_max_length")
    return text


def unpack(text: Json, path: str) -> list[Json]:
    """The entries of a packed history.

    Raises `InvalidRequest` for what was not packed here: to take another's compaction and ignore it
    would lose a conversation silently.
    """
    content = checks.string(text, path)
    if not content.startswith(_MARK):
        checks.refuse(path, f"Invalid '{path}': this compaction was not made by this server.")
    try:
        packed = base64.urlsafe_b64decode(content.removeprefix(_MARK))
        machine = zlib.decompressobj()
        plain = machine.decompress(packed, MOST_UNPACKED)
        whole = machine.eof and not machine.unconsumed_tail
        entries = loads(plain) if whole else None
    except (ValueError, binascii.Error, zlib.error, InvalidRequest):
        entries = None
    if not isinstance(entries, list):
        checks.refuse(path, f"Invalid '{path}': this compaction is damaged.")
    return entries


def place_of(role: str, parts: Iterable[Any]) -> str:
    """What holds a message's place: the same for the same words and media, whatever its id."""
    said = [part.text if part.text is not None else _source(part.raw) for part in parts]
    return hashlib.sha256(canonical([role, said])).hexdigest()[:32]


def _source(raw: Any) -> Json:
    names = ("image_url", "file_id", "file_url", "file_data", "video_url", "input_audio", "data")
    return {name: raw[name] for name in names if raw.get(name) is not None}
