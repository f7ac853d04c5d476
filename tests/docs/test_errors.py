import ast
import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator

import partita.errors
from docs.sources import PROJECT, headings, name_of, path_in_package, trees
from partita.errors import PartitaError
from partita.service.formats.error_wire import STATUS

FAMILIES = {"UsageError", "ConflictError", "UnavailableError", "DamageError"}
NEVER_ON_THE_WIRE = (
    "retrying.py",
    *("bulk/", "reliable/", "shards/", "patterns/", "cli/", "simulation/", "service/backup/"),
    "service/hosting/locations.py",
    "heat/",
    "local_postgres.py",
    "console/",
    "scaleout/catalog/heat.py",
    "scaleout/control/",
    "scaleout/copying/",
)
"""What is raised only here meets no HTTP: it has a heading and no status."""


@functools.cache
def codes_in_source() -> dict[str, set[str]]:
    """Each code that is raised, and the files that raise it."""
    codes = defaultdict(set)
    built = codes_of_classes()
    for path, tree in trees():
        file = path_in_package(path)
        makers = functions_that_take_a_code(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for code in codes_of_call(node, makers, built):
                    codes[code].add(file)
    return codes


def codes_of_call(call: ast.Call, makers: dict[str, int], built: dict[str, str]) -> Iterator[str]:
    """The codes that a call names: of an error, of a function that makes one, of `of`."""
    match call:
        case ast.Call(func=ast.Attribute(attr="of", value=ast.Name(id=name))) if name in built:
            yield built[name]
        case ast.Call(args=[ast.Constant(value=str(code)), _, *_]) if makes_an_error(call):
            yield code
        case ast.Call(args=arguments) if name_of(call.func) in makers:
            given = arguments[makers[name_of(call.func)] :][:1]
            yield from (each.value for each in given if is_text(each))  # type: ignore[attr-defined]
        case _:
            pass


def makes_an_error(call: ast.Call) -> bool:
    """Return whether a call is of an error class, or of the class that a constructor is given."""
    name = name_of(call.func)
    return name.endswith("Error") or name == "kind"


def codes_of_classes() -> dict[str, str]:
    """The codes that classes of partita.errors build their own errors with, by class."""
    (tree,) = (tree for path, tree in trees() if path_in_package(path) == "errors.py")
    return {
        error.name: call.args[0].value  # type: ignore[attr-defined]
        for error in tree.body
        if isinstance(error, ast.ClassDef)
        for call in ast.walk(error)
        if isinstance(call, ast.Call) and name_of(call.func) == "cls" and is_text(call.args[0])
    }


def functions_that_take_a_code(tree: ast.Module) -> dict[str, int]:
    """The places of the argument `code`, by function or method."""
    named = {
        function.name: [each.arg for each in function.args.args if each.arg not in {"self", "cls"}]
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
    }
    return {
        name: arguments.index("code") for name, arguments in named.items() if "code" in arguments
    }


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@functools.cache
def sections() -> dict[str, str]:
    """What the errors document says under each code."""
    text = (PROJECT / "docs" / "errors.md").read_text("utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def error_classes() -> list[type[PartitaError]]:
    return [
        item
        for item in vars(partita.errors).values()
        if inspect.isclass(item) and issubclass(item, PartitaError) and item is not PartitaError
    ]


def test_the_walk_finds_codes() -> None:
    codes = codes_in_source()

    assert {"EntityAlreadyExists", "StoreLocked", "Configuration"} <= codes.keys()
    assert codes["KeyExists"] == {"reliable/collections/dictionary.py"}
    assert codes["StoreLocked"] == {"storage/folder.py"}
    assert codes["ScanRefused"] == {"patterns/operations/run_query.py"}


def test_the_walk_finds_codes_that_are_handed_on() -> None:
    codes = codes_in_source()

    assert codes["ValueTooLarge"] == {
        "reliable/values/serialization.py",
        "patterns/types/blob_values.py",
    }
    assert codes["Deadlock"] == {"reliable/collections/transaction.py"}
    assert {"LockTimeout", "MutatedValue", "TemplateSyntax", "PropertyTooLarge"} <= codes.keys()


def test_every_code_has_a_heading_in_the_errors_document() -> None:
    documented = set(headings(PROJECT / "docs" / "errors.md"))
    codes = codes_in_source().keys() | set(codes_of_classes().values()) | STATUS.keys()

    assert codes - documented == set()


def test_every_code_that_may_reach_the_wire_has_a_status() -> None:
    on_the_wire = {
        code
        for code, files in codes_in_source().items()
        if any(not file.startswith(NEVER_ON_THE_WIRE) for file in files)
    }

    assert {"EntityAlreadyExists", "StoreLocked"} <= on_the_wire
    assert on_the_wire - STATUS.keys() == set()


def test_the_errors_document_is_in_order() -> None:
    codes = headings(PROJECT / "docs" / "errors.md")[1:]

    assert codes == sorted(codes)


def test_every_documented_code_exists_and_says_what_to_do() -> None:
    codes = codes_in_source().keys() | STATUS.keys()
    unraised = {code for code in sections() if code not in codes}

    assert {code for code in unraised if "service's catalogue" not in sections()[code]} <= {
        "BearerChallenge",
        "OperationTimedOut",
    }
    assert {code for code, text in sections().items() if "*What to do:* " not in text} == set()


def test_a_code_without_a_status_is_documented_with_a_dash() -> None:
    unseen = codes_in_source().keys() - STATUS.keys()

    assert "LockTimeout" in unseen
    assert {
        code for code in unseen if not sections()[code].strip().startswith("**\u2013.** ")
    } == set()


def test_every_error_belongs_to_one_family_and_says_when_it_is_raised() -> None:
    for error in error_classes():
        families = [ancestor for ancestor in error.__mro__ if ancestor.__name__ in FAMILIES]
        assert len(families) == 1, error
        assert error.__doc__, error


def test_every_status_of_a_user_s_mistake_tells_clients_not_to_retry() -> None:
    ours = {"Configuration", "FolderUnusable", "FormatVersion", "InternalError", "StoreDamaged"}
    ours |= {"BlobDamaged", "CopyIncomplete", "EntityDamaged", "MessageDamaged"}
    ours |= {"BlobStoreMissing", "BlobStoreUnfit"}
    server_side = {code for code, status in STATUS.items() if status >= 500} - ours

    assert {code for code in server_side if not code.startswith(("Store", "Server"))} <= {
        "NotImplemented",
        "OperationTimedOut",
        "UnreadableServiceProperties",
        "InvalidAccountKey",
        "InvalidLocation",
        "AddressUnusable",
        "TlsFilesUnusable",
    }
