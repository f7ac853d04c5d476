import ast
import inspect

import partita.errors
from docs.sources import PROJECT, headings, name_of, trees
from partita.errors import PartitaError
from partita.service.error_wire import STATUS

FAMILIES = {"UsageError", "ConflictError", "UnavailableError", "DamageError"}


def codes_in_source() -> dict[str, str]:
    """Each code that is raised, and a file that raises it."""
    codes = {}
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not name_of(node.func).endswith("Error"):
                continue
            match node.args:
                case [ast.Constant(value=str(code)), _, *_]:
                    codes[code] = path.name
                case _:
                    pass
    return codes


def error_classes() -> list[type[PartitaError]]:
    return [
        item
        for item in vars(partita.errors).values()
        if inspect.isclass(item) and issubclass(item, PartitaError) and item is not PartitaError
    ]


def test_the_walk_finds_codes() -> None:
    assert {"EntityAlreadyExists", "StoreLocked", "Configuration"} <= codes_in_source().keys()


def test_every_code_has_a_heading_in_the_errors_document() -> None:
    documented = set(headings(PROJECT / "docs" / "errors.md"))

    assert (codes_in_source().keys() | STATUS.keys()) - documented == set()


def test_every_code_has_a_status() -> None:
    assert codes_in_source().keys() - STATUS.keys() == set()


def test_the_errors_document_is_in_order() -> None:
    codes = headings(PROJECT / "docs" / "errors.md")[1:]

    assert codes == sorted(codes)


def test_every_error_belongs_to_one_family_and_says_when_it_is_raised() -> None:
    for error in error_classes():
        families = [ancestor for ancestor in error.__mro__ if ancestor.__name__ in FAMILIES]
        assert len(families) == 1, error
        assert error.__doc__, error


def test_every_status_of_a_user_s_mistake_tells_clients_not_to_retry() -> None:
    ours = {"Configuration", "FolderUnusable", "FormatVersion", "InternalError", "StoreDamaged"}
    server_side = {code for code, status in STATUS.items() if status >= 500} - ours

    assert {code for code in server_side if not code.startswith(("Store", "Server"))} <= {
        "NotImplemented",
        "OperationTimedOut",
        "UnreadableServiceProperties",
        "InvalidAccountKey",
        "AddressUnusable",
        "TlsFilesUnusable",
    }
