"""Plain XML in and out: what every document of the three services is read and written with.

Input is small and plain or it is refused: no document type, bounded bytes and elements. Output
goes through one escaping writer; what XML cannot hold is left out or makes the caller choose.
"""

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

_TO_ESCAPE = re.compile("[^\t\n\u0020-%'-;=?-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse_xml(
    body: bytes,
    root_name: str,
    *,
    bytes_max: int = XML_BYTES_MAX,
    elements_max: int = XML_ELEMENTS_MAX,
) -> Element:
    """Read a document and return its root, which must have this name."""
    # Every element costs a '<', in every encoding that the parser reads: a cheap first bound.
    if len(body) > bytes_max or body.count(b"<") > 2 * elements_max:
        raise invalid_xml(
            LimitExceededError, f"Send at most {bytes_max} bytes and {elements_max} elements."
        )
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except ParseError as error:
        line, column = error.position
        raise not_valid(
            hint="The body is not plain XML.", elements=_place(line, column, str(error))
        ) from error
    except (ValueError, LookupError) as error:
        raise not_valid(hint="The body is not plain XML.") from error
    if name_of(root) != root_name:
        raise not_valid(hint=f"The root element is {root_name}.")
    return root


def _place(line: int, column: int, reason: str) -> list[tuple[str, str]]:
    return [("LineNumber", str(line)), ("LinePosition", str(column)), ("Reason", reason)]


def name_of(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def text_of(element: Element) -> str:
    """Return the text of an element that holds nothing else."""
    if len(element):
        raise not_valid(hint=f"{name_of(element)} holds text only.")
    return element.text or ""


def not_valid(*, hint: str, elements: Iterable[tuple[str, str]] = ()) -> InvalidRequestError:
    """Return the refusal of a document that is not what it should be."""
    return invalid_xml(InvalidRequestError, hint, elements)


def document(name: str, content: str, attributes: str = "") -> bytes:
    """Return a whole document; `attributes` are ready, with their leading blank."""
    if not content:
        return f"{DECLARATION}<{name}{attributes} />".encode()
    return f"{DECLARATION}<{name}{attributes}>{content}</{name}>".encode()


def element(name: str, content: str) -> str:
    """Return an element around content that is escaped already."""
    return f"<{name}>{content}</{name}>" if content else f"<{name} />"


def text_element(name: str, text: str) -> str:
    """Return an element that holds this text."""
    return element(name, escape(text))


def escape(text: str) -> str:
    """Return text as content of an element; a carriage return survives the parser as a number."""
    if _TO_ESCAPE.search(text) is None:
        return text
    return html.escape(_ILLEGAL.sub("", text), quote=False).replace("\r", "&#xD;")


def escape_attribute(text: str) -> str:
    return html.escape(_ILLEGAL.sub("", text))


def is_legal(text: str) -> bool:
    """Tell whether XML can hold every character of a text."""
    return _ILLEGAL.search(text) is None
