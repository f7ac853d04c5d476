"""Plain XML: parsing and printing of the documents of the three services.

Input must be small and plain: no document type, bounded bytes, elements and attributes. Output is
escaped; characters that XML cannot represent are omitted, or the caller decides.
"""

import codecs
import html
import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import fromstring

from partita.errors import InvalidRequestError, LimitExceededError
from partita.refusals import invalid_xml

DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'
XML_BYTES_MAX = 256 * 1024
XML_ELEMENTS_MAX = 1000
XML_ATTRIBUTES_MAX = 32
"""Of one element: no document of the services needs any but those of namespaces."""

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TOO_MANY_ATTRIBUTES = re.compile(
    rb"""<[^\s<>/!?=]++(?:\s++[^\s<>=]++\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+')){%d}"""
    % (XML_ATTRIBUTES_MAX + 1)
)
_TO_ESCAPE = re.compile("[^\t\n\u0020-%'-;=?-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse_xml(
    body: bytes,
    root_name: str,
    *,
    bytes_max: int = XML_BYTES_MAX,
    elements_max: int = XML_ELEMENTS_MAX,
) -> Element:
    """Parse a document and return its root, which must have this name."""
    # Every element has a '<', in every encoding of the parser: a cheap first bound.
    if len(body) > bytes_max or body.count(b"<") > 2 * elements_max:
        raise invalid_xml(
            LimitExceededError, f"Send at most {bytes_max} bytes and {elements_max} elements."
        )
    try:
        # In every other encoding of the parser, the characters of tags are those of ASCII.
        text = body.decode("utf-16") if b"\0" in body[:4] or body[:2] in _UTF16 else body
        plain = text if isinstance(text, bytes) else text.encode()
        if _TOO_MANY_ATTRIBUTES.search(plain):
            raise invalid_xml(
                LimitExceededError, f"Use at most {XML_ATTRIBUTES_MAX} attributes in an element."
            )
        root: Element = fromstring(text, forbid_dtd=True)
    except ParseError as error:
        line, column = error.position
        raise not_valid(
            hint="Send plain XML.", elements=_place(line, column, str(error))
        ) from error
    except (ValueError, LookupError) as error:
        raise not_valid(hint="Send plain XML.") from error
    if name_of(root) != root_name:
        raise not_valid(hint=f"Use {root_name} as the root element.")
    return root


def _place(line: int, column: int, reason: str) -> list[tuple[str, str]]:
    return [("LineNumber", str(line)), ("LinePosition", str(column)), ("Reason", reason)]


def name_of(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def text_of(element: Element) -> str:
    """Return the text of an element without child elements."""
    if len(element):
        raise not_valid(hint=f"Use only text in {name_of(element)}.")
    return element.text or ""


def not_valid(*, hint: str, elements: Iterable[tuple[str, str]] = ()) -> InvalidRequestError:
    """Return the refusal of an invalid document."""
    return invalid_xml(InvalidRequestError, hint, elements)


def document(name: str, content: str, attributes: str = "") -> bytes:
    """Return a complete document; `attributes` are escaped, with a leading blank."""
    if not content:
        return f"{DECLARATION}<{name}{attributes} />".encode()
    return f"{DECLARATION}<{name}{attributes}>{content}</{name}>".encode()


def element(name: str, content: str) -> str:
    """Return an element with content that is already escaped."""
    return f"<{name}>{content}</{name}>" if content else f"<{name} />"


def text_element(name: str, text: str) -> str:
    """Return an element with this text."""
    return element(name, escape(text))


def escape(text: str) -> str:
    """Escape text for an element; a carriage return becomes a character reference."""
    if _TO_ESCAPE.search(text) is None:
        return text
    return html.escape(_ILLEGAL.sub("", text), quote=False).replace("\r", "&#xD;")


def escape_attribute(text: str) -> str:
    return html.escape(_ILLEGAL.sub("", text))


def is_legal(text: str) -> bool:
    """Return whether XML can represent every character of a text."""
    return _ILLEGAL.search(text) is None
