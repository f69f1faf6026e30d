"""HEIC, the format of iPhone photos: decoded by pillow-heif, which is imported when the first such picture comes."""

from __future__ import annotations

from functools import cache

from labelwise.errors import LabelwiseError, missing_extra

# Who wrote the file, at byte 8: single pictures and bursts, H.265 inside.
_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})


def is_heic(data: bytes) -> bool:
    r"""By content: phones and messengers give such files any suffix.

    >>> is_heic(b"\0\0\0\x18ftypheic\0\0"), is_heic(b"\0\0\0\x18ftypavif\0\0"), is_heic(b"\xff\xd8\xff\xe0JFIF")
    (True, False, False)
    """
    return data[4:8] == b"ftyp" and data[8:12] in _BRANDS


@cache
def missing_decoder() -> LabelwiseError | None:
    """Teach Pillow the format, once; else the error that says what to install."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return missing_extra("pillow-heif", "heic")
    register_heif_opener()
    return None
