"""Which write does what under which If-Match, and every way to write a verb."""

import pytest

from wire.raw import JSON, KEYS, RawClient, insert

STALE = "W/\"datetime'2001-02-03T04%3A05%3A06.7Z'\""


# Verbs


@pytest.mark.parametrize(
    ("method", "tunnelled"),
    [("PATCH", None), ("MERGE", None), ("POST", "MERGE"), ("POST", "PATCH")],
)
def test_every_way_of_writing_merge_merges(
    raw: RawClient, table: str, method: str, tunnelled: str | None
) -> None:
    insert(raw, table, Kept=1)
    headers = JSON | {"If-Match": "*"} | ({"X-HTTP-Method": tunnelled} if tunnelled else {})

    answer = raw.send(method, f"/{table}{KEYS}", '{"Added":2}', headers)

    shown = raw.send("GET", f"/{table}{KEYS}")
    assert (answer.status, answer["ETag"]) == (204, shown["ETag"])
    assert (shown.json["Kept"], shown.json["Added"]) == (1, 2)


@pytest.mark.parametrize("tunnelled", ["PUT", "DELETE"])
def test_other_verbs_go_through_the_tunnel_too(raw: RawClient, table: str, tunnelled: str) -> None:
    insert(raw, table, Dropped=1)
    headers = JSON | {"If-Match": "*", "X-HTTP-Method": tunnelled}

    assert raw.send("POST", f"/{table}{KEYS}", "{}", headers).status == 204

    shown = raw.send("GET", f"/{table}{KEYS}")
    assert shown.status == (200 if tunnelled == "PUT" else 404)
    assert b"Dropped" not in shown.body


@pytest.mark.parametrize(
    ("method", "tunnelled", "code"),
    [
        ("PUT", "MERGE", "XMethodNotUsingPost"),
        ("POST", "COPY", "XMethodIncorrectValue"),
        ("POST", "GET", "XMethodIncorrectValue"),
    ],
)
def test_a_misused_tunnel_is_refused(
    raw: RawClient, table: str, method: str, tunnelled: str, code: str
) -> None:
    headers = JSON | {"X-HTTP-Method": tunnelled}

    answer = raw.send(method, f"/{table}{KEYS}", "{}", headers)

    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize(
    ("method", "target"),
    [("HEAD", "/Tables"), ("PUT", "/Tables"), ("POST", "/Tables('abc')"), ("POST", "/{}" + KEYS)],
)
def test_a_verb_out_of_place_is_not_allowed(
    raw: RawClient, table: str, method: str, target: str
) -> None:
    answer = raw.send(method, target.format(table), b"" if method == "HEAD" else b"{}", JSON)

    assert (answer.status, answer["x-ms-error-code"]) == (405, "MethodNotAllowed")


# Conditions


@pytest.mark.parametrize("method", ["PUT", "PATCH", "MERGE"])
@pytest.mark.parametrize(
    ("condition", "exists", "status", "code"),
    [
        ("none", True, 204, None),
        ("none", False, 204, None),
        ("any", True, 204, None),
        ("any", False, 404, "ResourceNotFound"),
        ("match", True, 204, None),
        ("stale", True, 412, "UpdateConditionNotSatisfied"),
        ("stale", False, 404, "ResourceNotFound"),
    ],
)
def test_a_write_is_conditional_on_what_it_names(
    raw: RawClient,
    table: str,
    method: str,
    condition: str,
    status: int,
    code: str | None,
    *,
    exists: bool,
) -> None:
    etag = insert(raw, table, Old=1)["ETag"] if exists else ""
    given = {"none": {}, "any": {"If-Match": "*"}, "match": {"If-Match": etag}}
    headers = JSON | given.get(condition, {"If-Match": STALE})

    answer = raw.send(method, f"/{table}{KEYS}", '{"New":2}', headers)

    assert answer.status == status
    shown = raw.send("GET", f"/{table}{KEYS}")
    if code is None:
        assert shown["ETag"] == answer["ETag"] != etag
        assert shown.json["New"] == 2
        assert ("Old" in shown.json) is (exists and method != "PUT")
    else:
        assert answer.code == code
        assert shown.status == (200 if exists else 404)
        assert b"New" not in shown.body


@pytest.mark.parametrize(
    ("condition", "exists", "status", "code"),
    [
        (None, True, 400, "MissingRequiredHeader"),
        (None, False, 400, "MissingRequiredHeader"),
        ("*", True, 204, None),
        ("*", False, 404, "ResourceNotFound"),
        ("match", True, 204, None),
        (STALE, True, 412, "UpdateConditionNotSatisfied"),
        (STALE, False, 404, "ResourceNotFound"),
    ],
)
def test_a_delete_needs_a_condition(
    raw: RawClient,
    table: str,
    condition: str | None,
    status: int,
    code: str | None,
    *,
    exists: bool,
) -> None:
    etag = insert(raw, table)["ETag"] if exists else ""
    given = etag if condition == "match" else condition
    headers = {} if given is None else {"If-Match": given}

    answer = raw.send("DELETE", f"/{table}{KEYS}", headers=headers)

    assert answer.status == status
    assert "ETag" not in answer.names
    assert code is None or answer.code == code
    survives = exists and code is not None
    assert raw.send("GET", f"/{table}{KEYS}").status == (200 if survives else 404)


@pytest.mark.parametrize("etag", ["Malformed", '""W/"', 'W/"a", W/"b"', "W/unquoted"])
@pytest.mark.parametrize("method", ["PUT", "MERGE", "DELETE"])
def test_a_malformed_etag_is_refused(raw: RawClient, table: str, method: str, etag: str) -> None:
    insert(raw, table)

    answer = raw.send(method, f"/{table}{KEYS}", "{}", JSON | {"If-Match": etag})

    assert (answer.status, answer.code) == (400, "InvalidInput")
    assert answer.first_line.startswith(f"The etag value '{etag}' specified in one of the")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "MERGE"])
def test_a_write_with_an_empty_if_match_is_unconditional(
    raw: RawClient, table: str, method: str
) -> None:
    for name in ("If-Match", "If-None-Match"):
        body = f'{{"Written":"{name}"}}'
        answer = raw.send(method, f"/{table}{KEYS}", body, JSON | {name: ""})
        assert answer.status == 204
        assert raw.send("GET", f"/{table}{KEYS}").json["Written"] == name


def test_a_delete_with_an_empty_if_match_lacks_its_condition(raw: RawClient, table: str) -> None:
    insert(raw, table)

    answer = raw.send("DELETE", f"/{table}{KEYS}", headers={"If-Match": ""})

    assert (answer.status, answer.code) == (400, "MissingRequiredHeader")
    assert raw.send("GET", f"/{table}{KEYS}").status == 200


@pytest.mark.parametrize("etag", ['"strong"', 'W/"else"', "W/\"datetime'never'\""])
def test_an_etag_that_is_not_ours_does_not_match(raw: RawClient, table: str, etag: str) -> None:
    insert(raw, table)

    answer = raw.send("PUT", f"/{table}{KEYS}", "{}", JSON | {"If-Match": etag})

    assert (answer.status, answer.code) == (412, "UpdateConditionNotSatisfied")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_write_if_none_match_is_refused(raw: RawClient, table: str, method: str) -> None:
    headers = JSON | {"If-None-Match": "*", "If-Match": "*"}

    answer = raw.send(method, f"/{table}{KEYS}", "{}", headers)

    assert (answer.status, answer.code) == (400, "InvalidInput")


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_a_read_ignores_conditions(raw: RawClient, table: str, header: str) -> None:
    etag = insert(raw, table)["ETag"]

    for value in (etag, "*", STALE):
        assert raw.send("GET", f"/{table}{KEYS}", headers={header: value}).status == 200


def test_an_insert_ignores_conditions(raw: RawClient, table: str) -> None:
    body = '{"PartitionKey":"p","RowKey":"r"}'

    first = raw.send("POST", f"/{table}", body, JSON | {"If-Match": STALE})
    second = raw.send("POST", f"/{table}", body, JSON | {"If-Match": "*"})

    assert (first.status, second.status, second.code) == (201, 409, "EntityAlreadyExists")
