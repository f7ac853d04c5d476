"""The mechanical part of plain English: phrases that names, texts and documents do not use."""

import re
from pathlib import Path

import pytest

from docs.sources import DOCUMENTS, PROJECT, SOURCES

COMPARISONS = "longer|more|less|fewer|later|earlier|larger|smaller|newer|older|greater|higher|lower"
PHRASES = {
    rf"\b(?<![Tt]here )(is|are|was|were) +no +(?!({COMPARISONS})\b)": "is not a",
    r"\bTell +whether\b": "Return whether",
    r"\bSay +whether\b": "Return whether",
    r"\bHear that\b": "the event in the imperative",
    r"\b[Ww]hoever\b": "the thing that the glossary names",
    r"\b([Nn]obody|[Ss]omebody|[Ee]verybody)\b": "the client, process, user or worker meant",
    r"\bstands? still\b": "does not change",
    r"\bstood still\b": "did not change",
    r"\bgood-bye\b": "what is left out",
    r"\bthe last word\b": "decides",
    r"\b(has|have|had) the turn\b": "holds the lock",
    r"\bgoes? its way\b": "what it does",
}
"""Each phrase, and what to write instead."""
NAME = re.compile(r"[A-Za-z0-9]_A_[A-Z]")
HISTORY = {"docs/decisions", "CHANGELOG.md"}
"""Records are not rewritten."""


def findings(path: Path, text: str) -> list[str]:
    """The phrases of a text, also those that a line break or the marks of a comment divide."""
    text = text.replace('"nobody"', '"user"')  # the user of that name
    joined = re.sub(r"[\"']?\n\s*(# |f?[\"'])?", lambda cut: " " * len(cut[0]), text)
    return [
        f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}: write {instead!r}"
        for phrase, instead in PHRASES.items()
        for found in re.finditer(phrase, joined)
    ]


def test_modules_use_plain_phrases() -> None:
    texts = {path.relative_to(PROJECT): path.read_text("utf-8") for path in SOURCES}

    assert [each for path, text in texts.items() for each in findings(path, text)] == []
    assert [path for path, text in texts.items() if NAME.search(text)] == []


def test_documents_use_plain_phrases() -> None:
    texts = {path.relative_to(PROJECT): path.read_text("utf-8") for path in DOCUMENTS}
    current = {
        path: text
        for path, text in texts.items()
        if not any(str(path).startswith(record) for record in HISTORY)
    }

    assert [each for path, text in current.items() for each in findings(path, text)] == []


@pytest.mark.parametrize(
    "text",
    ["Tell whether it is open.", "This is\n    # no place", "Whoever holds it", "nobody reads"],
)
def test_the_check_finds_a_phrase(text: str) -> None:
    assert len(findings(Path("a.py"), text)) == 1


@pytest.mark.parametrize("text", ["It is no longer open.", "There are no more than 100 of them."])
def test_the_check_leaves_plain_sentences_alone(text: str) -> None:
    assert findings(Path("a.py"), text) == []
