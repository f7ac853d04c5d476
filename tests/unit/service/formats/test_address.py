import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidKeyError, InvalidRequestError, PartitaError
from partita.service.accounts.respond import Target, locate
from partita.service.formats.address import (
    QUERY_PAIRS_MAX,
    parse_continuation,
    parse_query,
    print_continuation,
)
from partita.service.tables.answers import edit_link, entity_url, table_url
from partita.service.tables.wire import (
    Batch,
    EntitySet,
    MetadataDocument,
    OneEntity,
    OneTable,
    ServiceRoot,
    TableCollection,
    parse_resource,
)
from partita.tables.entity import EntityKey

ACCOUNTS = {"devstoreaccount1", "acct"}
SYNTAX = "Bad Request - Error in query syntax."
WRONG_KEYS = (
    "The number of keys specified in the URI does not match number of key properties for the"
    " resource 'acct.MyTab'."
)


def entity(partition_key: str, row_key: str) -> OneEntity:
    return OneEntity("MyTab", EntityKey(partition_key, row_key))


def refusal(path: str) -> tuple[str, str]:
    with pytest.raises(PartitaError) as caught:
        parse_resource(path, "acct")
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    "host", ["127.0.0.1:10002", "localhost", "localhost:10002", "[::1]:10002", "tables", "10.0.0.9"]
)
def test_a_host_without_account_leaves_it_to_the_path(host: str) -> None:
    assert locate("http", host, "/acct/MyTab", ACCOUNTS) == Target(
        "acct", False, f"http://{host}/acct", "MyTab"
    )


@pytest.mark.parametrize(
    "host", ["acct.table.core.windows.net", "acct.localhost:10002", "ACCT.table.local"]
)
def test_a_first_label_that_is_a_known_account_means_host_style(host: str) -> None:
    assert locate("https", host, "/MyTab()", ACCOUNTS) == Target(
        "acct", False, f"https://{host}", "/MyTab()"
    )


def test_a_table_host_is_host_style_also_for_an_unknown_account() -> None:
    target = locate("https", "nobody.table.core.windows.net", "/Tables", ACCOUNTS)

    assert (target.account, target.path) == ("nobody", "/Tables")


def test_a_dotted_host_of_no_account_is_path_style() -> None:
    target = locate("https", "tables.example.org", "/acct/Tables", ACCOUNTS)

    assert target == Target("acct", False, "https://tables.example.org/acct", "Tables")


def test_an_account_named_like_the_start_of_an_ip_address_stays_path_style() -> None:
    target = locate("http", "127.0.0.1", "/acct/Tables", {"127", "acct"})

    assert target.account == "acct"


def test_a_secondary_address_names_the_account_and_keeps_its_root() -> None:
    by_path = locate("http", "127.0.0.1", "/acct-secondary/Tables", ACCOUNTS)
    by_host = locate("http", "acct-secondary.localhost", "/Tables", ACCOUNTS)

    assert by_path == Target("acct", True, "http://127.0.0.1/acct-secondary", "Tables")
    assert by_host == Target("acct", True, "http://acct-secondary.localhost", "/Tables")


@pytest.mark.parametrize("path", ["/acct", "/acct/", "/acct//", "//acct/"])
def test_the_service_root_comes_with_and_without_a_slash(path: str) -> None:
    target = locate("http", "127.0.0.1", path, ACCOUNTS)

    assert (target.account, target.root) == ("acct", "http://127.0.0.1/acct")
    assert parse_resource(target.path) == ServiceRoot()


@pytest.mark.parametrize("path", ["", "/"])
def test_the_service_root_in_host_style_is_the_empty_path(path: str) -> None:
    assert parse_resource(locate("http", "acct.localhost", path, ACCOUNTS).path) == ServiceRoot()


@pytest.mark.parametrize("path", ["", "/", "/a%2Fb/Tables", "/a b/Tables", '/a"b', "/é/Tables"])
def test_path_style_without_an_account_name_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        locate("http", "127.0.0.1", path, ACCOUNTS)

    assert caught.value.code == "InvalidInput"


@pytest.mark.parametrize(
    "host", ["", "a b", 'x".y', "acct.local:port", "[::1", "a\r\nb", "é.local"]
)
def test_a_host_that_is_not_a_host_name_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        locate("http", host, "/acct/Tables", ACCOUNTS)

    assert caught.value.code == "InvalidHeaderValue"


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("", ServiceRoot()),
        ("/", ServiceRoot()),
        ("Tables", TableCollection()),
        ("Tables()", TableCollection()),
        ("/Tables( )/", TableCollection()),
        ("Tables('MyTab')", OneTable("MyTab")),
        ("Tables(%27MyTab%27)", OneTable("MyTab")),
        ("Tables(TableName='MyTab')", OneTable("MyTab")),
        ("Tables('tables')", OneTable("tables")),
        ("Tables('a-b/c')", OneTable("a-b/c")),
        ("MyTab", EntitySet("MyTab")),
        ("MyTab/", EntitySet("MyTab")),
        ("MyTab()", EntitySet("MyTab")),
        ("MyTab( )", EntitySet("MyTab")),
        ("MyTab%28%29", EntitySet("MyTab")),
        ("$batch", Batch()),
        ("%24batch", Batch()),
        ("$metadata", MetadataDocument()),
    ],
)
def test_resources_are_read_in_all_their_forms(path: str, resource: object) -> None:
    assert parse_resource(path) == resource


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("MyTab(PartitionKey='a',RowKey='b')", ("a", "b")),
        ("MyTab(RowKey='b',PartitionKey='a')", ("a", "b")),
        ("MyTab(PartitionKey='a', RowKey='b')", ("a", "b")),
        ("MyTab( PartitionKey = 'a' ,%20RowKey='b' )", ("a", "b")),
        ("MyTab(PartitionKey='',RowKey='')", ("", "")),
        ("MyTab(PartitionKey='''',RowKey='')", ("'", "")),
        ("MyTab(PartitionKey='a''b',RowKey='''''')", ("a'b", "''")),
        ("MyTab(PartitionKey='a%27%27b',RowKey='x')", ("a'b", "x")),
        ("MyTab(PartitionKey=%27a%27,RowKey=%27b%27)", ("a", "b")),
        ("MyTab(PartitionKey='foo%2525',RowKey='b')", ("foo%25", "b")),
        ("MyTab(PartitionKey='a+b',RowKey='c%2Bd')", ("a+b", "c+d")),
        ("MyTab(PartitionKey='a,b',RowKey='c=d)(')", ("a,b", "c=d)(")),
        ("MyTab(PartitionKey='a'',RowKey=''',RowKey='b')", ("a',RowKey='", "b")),
        ("MyTab(PartitionKey='%C3%A9%20%F0%9F%98%80',RowKey='é')", ("é 😀", "é")),
        ("MyTab(PartitionKey='!@:;=&$*~',RowKey='%22')", ("!@:;=&$*~", '"')),
    ],
)
def test_keys_survive_however_they_are_written(path: str, key: tuple[str, str]) -> None:
    assert parse_resource(path) == entity(*key)


@pytest.mark.parametrize(
    "path",
    [
        "MyTab('x')",
        "MyTab('x','y','z')",
        "MyTab(PartitionKey='x')",
        "MyTab(PartitionKey='x',RowKey='y',Third='z')",
        "MyTab/Tables('MyTab')",
    ],
)
def test_a_wrong_number_of_keys_names_account_and_table(path: str) -> None:
    assert refusal(path) == ("InvalidInput", WRONG_KEYS)


@pytest.mark.parametrize(
    "path",
    [
        "MyTab(",
        "MyTab(PartitionKey='a',RowKey='b'",
        "MyTab(PartitionKey='a',RowKey='b'))",
        "MyTab(PartitionKey='a',RowKey='b')x",
        "MyTab(PartitionKey='a',RowKey='b')/Price",
        "MyTab(PartitionKey='a',RowKey='b',)",
        "MyTab(PartitionKey='a' RowKey='b')",
        "MyTab(PartitionKey='a,RowKey=b)",
        "MyTab(PartitionKey='a'b',RowKey='c')",
        "MyTab(PartitionKey=a,RowKey=b)",
        "MyTab(PartitionKey=5,RowKey='b')",
        "MyTab('a','b')",
        "MyTab(PartitionKey='a',PartitionKey='b')",
        "MyTab(partitionkey='a',rowkey='b')",
        "MyTab(PartitionKey='a/b',RowKey='c')",
        "MyTab(PartitionKey='a%2Fb',RowKey='c')",
        "MyTab(PartitionKey='a',RowKey='b%5Cc')",
        "MyTab(PartitionKey='%C3',RowKey='b')",
        "MyTab(PartitionKey='%',RowKey='b')",
        "MyTab(PartitionKey='%4',RowKey='b')",
        "MyTab(PartitionKey='%zz',RowKey='b')",
        "Tables(Name='a')",
        "Tables('\udc80')",
        "MyTab/Other(PartitionKey='a',RowKey='b')",
        "MyTab(" + "'a'," * 1000 + "'a')",
    ],
)
def test_what_cannot_be_lexed_is_a_syntax_error(path: str) -> None:
    assert refusal(path) == ("InvalidInput", SYNTAX)


@pytest.mark.parametrize("character", ["%23", "%3F", "%00", "%1F", "%7F", "%C2%9F"])
def test_forbidden_characters_of_a_key_are_out_of_range(character: str) -> None:
    path = f"MyTab(PartitionKey='a{character}',RowKey='b')"

    assert refusal(path) == ("OutOfRangeInput", "One of the request inputs is out of range.")


def test_a_key_may_have_512_characters_and_no_more() -> None:
    longest = "k" * 512

    assert parse_resource(f"MyTab(PartitionKey='{longest}',RowKey='')") == entity(longest, "")
    assert refusal(f"MyTab(PartitionKey='',RowKey='{longest}k')")[0] == "PropertyValueTooLarge"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("my-tab", "InvalidResourceName"),
        ("1tab()", "InvalidResourceName"),
        ("my_tab(PartitionKey='a',RowKey='b')", "InvalidResourceName"),
        ("$other", "InvalidResourceName"),
        ("MyTab)", "InvalidResourceName"),
        ("ab", "OutOfRangeInput"),
        ("a" * 64, "OutOfRangeInput"),
        ("tables", "InvalidInput"),
        ("TABLES(PartitionKey='a',RowKey='b')", "InvalidInput"),
    ],
)
def test_a_bad_table_name_is_refused_before_anything_is_looked_up(path: str, code: str) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        parse_resource(path)

    assert caught.value.code == code


@pytest.mark.parametrize("path", ["MyTab/Tables", "MyTab/Tables/", "MyTab/Other", "/MyTab/$batch"])
def test_a_segment_after_a_table_is_taken_for_the_table(path: str) -> None:
    assert parse_resource(path) == EntitySet("MyTab")


def test_a_long_hostile_path_is_refused_in_linear_time() -> None:
    for piece in ("/", "'", "''", "(", "MyTab(", "PartitionKey=", "a ", "%27", ",", "'',"):
        assert refusal("MyTab(" + piece * (200_000 // len(piece)))[0]


@given(st.text(max_size=600))
def test_only_typed_errors_come_out_of_a_path(path: str) -> None:
    with contextlib.suppress(PartitaError):
        parse_resource(path)


KEY_TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/\\#?"),
    max_size=60,
)


@given(KEY_TEXTS, KEY_TEXTS)
def test_a_printed_address_reads_back_as_the_same_entity(partition_key: str, row_key: str) -> None:
    url = entity_url("http://127.0.0.1:10002/acct", "MyTab", (partition_key, row_key))

    assert url.isascii()
    assert " " not in url
    path = url.removeprefix("http://127.0.0.1:10002")
    target = locate("http", "127.0.0.1:10002", path, ACCOUNTS)
    assert parse_resource(target.path) == entity(partition_key, row_key)


def test_printed_keys_double_quotes_and_escape_the_rest() -> None:
    assert edit_link("MyTab", ("A'aaa\"_bbbb2", "a b/é")) == (
        "MyTab(PartitionKey='A''aaa%22_bbbb2',RowKey='a%20b%2F%C3%A9')"
    )


def test_a_table_has_an_address_too() -> None:
    assert table_url("http://127.0.0.1/acct", "MyTab") == "http://127.0.0.1/acct/Tables('MyTab')"


def test_a_query_is_read_as_a_form() -> None:
    assert parse_query("$filter=a+eq%20%27b%2Bc%27&$top=5&comp=&flag&&a=b=c&a=%C3%A9") == [
        ("$filter", "a eq 'b+c'"),
        ("$top", "5"),
        ("comp", ""),
        ("flag", ""),
        ("a", "b=c"),
        ("a", "é"),
    ]


def test_an_empty_query_has_no_options() -> None:
    assert parse_query("") == []


def test_a_stray_percent_sign_in_a_query_stands_for_itself() -> None:
    assert parse_query("a=50%&b=%zz") == [("a", "50%"), ("b", "%zz")]


@pytest.mark.parametrize("query", ["a=%FF", "%C3=1", "a=\udc80", "a=%ED%A0%80"])
def test_a_query_that_is_not_utf8_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_query(query)

    assert (caught.value.code, caught.value.message) == (
        "InvalidInput",
        "One of the request inputs is not valid.",
    )


def test_a_query_has_a_limit_of_options() -> None:
    assert len(parse_query("&".join(["a=1"] * QUERY_PAIRS_MAX))) == QUERY_PAIRS_MAX
    with pytest.raises(InvalidRequestError):
        parse_query("&".join(["a=1"] * (QUERY_PAIRS_MAX + 1)))


def test_continuations_look_like_those_of_the_service() -> None:
    assert print_continuation("pkadca2e0d") == "1!16!cGthZGNhMmUwZA--"
    assert print_continuation("") == "1!0!"
    assert parse_continuation("1!16!cGthZGNhMmUwZA--") == "pkadca2e0d"
    assert parse_continuation("1!0!") == ""


def test_a_text_that_ends_in_the_last_letters_of_base64_is_not_mistaken_for_padding() -> None:
    assert print_continuation("ab>") != print_continuation("ab")
    assert parse_continuation(print_continuation("ab>")) == "ab>"
    assert parse_continuation(print_continuation("ab?")) == "ab?"


@given(st.text(st.characters(codec="utf-8"), max_size=384))
def test_a_continuation_reads_back_and_is_safe_in_a_header(text: str) -> None:
    printed = print_continuation(text)

    assert parse_continuation(printed) == text
    assert printed.isascii()
    assert printed.isprintable()
    assert " " not in printed


def test_the_longest_key_fits_in_a_continuation() -> None:
    assert parse_continuation(print_continuation("€" * 512)) == "€" * 512


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1!",
        "1!0",
        "1!4!",
        "2!0!",
        "1!00!",
        "1!3!YWI",
        "1!4!YWJ-",
        "1!4!Y---",
        "1!4!YW =",
        "1!4!YWI=",
        "1!5!YWI-A",
        "1!8!YWI-YWI-",
        "1!4!_____",
        "1!4!____",
        "1!-4!YWI-",
        "1!٤!YWI-",
        "1!4!YWI-\n",
        "1!9999!" + "A" * 9999,
        "\udc80",
    ],
)
def test_a_continuation_that_was_never_printed_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_continuation(text)

    assert (caught.value.code, caught.value.message) == (
        "InvalidInput",
        "One of the request inputs is not valid.",
    )
