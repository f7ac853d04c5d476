import datetime as dt
import enum
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from partita.patterns.design.explain import SHOWN_CHARACTERS_MAX, advise, explain, headline
from partita.patterns.keys.intervals import between, starting_with
from partita.patterns.planning.columns import Columns, Condition
from partita.patterns.planning.plans import QueryKind, plan_query, worse
from partita.patterns.types.decorators import entity, entity_type
from partita.patterns.types.indexes import index, list_index


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    last: str
    email: str
    age: int = 0
    grade: Grade = Grade.JUNIOR
    joined: dt.datetime = dt.datetime(2014, 1, 1, tzinfo=dt.UTC)
    born: dt.date = dt.date(1970, 1, 1)
    badge: UUID = UUID(int=0)
    amount: Decimal = Decimal(0)
    is_manager: bool = False
    rating: float = 0.0


@entity(table="clients", partition="{country}", row="{id:06d}")
class Client:
    country: str
    id: int
    email: str
    nick: str | None = None
    age: int = 0


by_email = index(Client, table="clientsbyemail", partition="{email}", row="{id:06d}_{country}")
by_age = index(Client, table="adults", partition="{age:03d}", row="{id:06d}_{country}",
               where=lambda client: client.age > 17)  # fmt: skip
by_nick = index(Client, table="nicks", partition="{nick}", row="{id:06d}_{country}")

employees, c = entity_type(Employee), Columns(entity_type(Employee))
clients, k = entity_type(Client), Columns(entity_type(Client))


class TestHeadlines:
    def test_a_refused_scan_and_what_would_help(self) -> None:
        assert explain(plan_query(employees, {}, c.age > 40)) == (
            "TABLE SCAN   staff   residual EntityType eq 'Employee' and Age gt 40   REFUSED\n"
            "help: give dept=... (range over 'emp_'), or give dept=... and add "
            'index(Employee, row="age_{age:08d}_{id:06d}") (range)'
        )

    def test_a_scan_that_was_asked_for(self) -> None:
        made = plan_query(employees, {}, c.age > 40)

        assert headline(made, is_allowed=True).endswith("ALLOWED")

    @pytest.mark.parametrize(
        ("keys", "condition", "line"),
        [
            (
                {"dept": "Sales", "id": 7},
                c.age > 40,
                (
                    "POINT   staff   PartitionKey eq 'Sales' and RowKey eq 'emp_000007'"
                    "   then Age gt 40"
                ),
            ),
            ({"dept": "Sales"}, c.id.in_([1, 2]), "POINTS   staff   2 keys"),
            ({"dept": "Sales"}, c.id.in_([]), "POINTS   staff   nothing can match"),
            (
                {"dept": "Sales", "id": between(1, 2)},
                None,
                (
                    "RANGE   staff   PartitionKey eq 'Sales' and RowKey ge 'emp_000001'"
                    " and RowKey lt 'emp_000003'   residual EntityType eq 'Employee'"
                ),
            ),
            (
                {"dept": "Sales"},
                c.id.between(1, 2) | c.id.between(5, 6),
                (
                    "RANGE   staff   PartitionKey eq 'Sales' and RowKey ge 'emp_000001'"
                    " and RowKey lt 'emp_000003' and 1 more   residual EntityType eq 'Employee'"
                ),
            ),
            (
                {},
                c.dept.in_(["a", "b"]),
                "FAN-IN   staff   2 partitions   residual EntityType eq 'Employee'",
            ),
            (
                {"dept": starting_with("S")},
                None,
                (
                    "MULTI-PARTITION SCAN   staff   PartitionKey ge 'S' and PartitionKey lt 'T'"
                    "   residual EntityType eq 'Employee'   REFUSED"
                ),
            ),
        ],
    )
    def test_every_class_has_its_line(
        self, keys: dict[str, Any], condition: Condition | None, line: str
    ) -> None:
        assert headline(plan_query(employees, keys, condition)) == line

    def test_a_partition_scan_is_called_so(self) -> None:
        assert headline(plan_query(clients, {"country": "NL"}, k.age > 3)) == (
            "PARTITION SCAN   clients   PartitionKey eq 'NL'"
            "   residual EntityType eq 'Client' and Age gt 3"
        )

    def test_an_index_is_named(self) -> None:
        line = headline(plan_query(clients, {"email": "x"}, via=by_email))

        assert line.startswith("PARTITION SCAN   clientsbyemail   via ")
        assert line.endswith(f"residual EntityType eq 'Client@{by_email.name}'")

    def test_a_limit_is_shown(self) -> None:
        made = plan_query(clients, {"country": "NL"})

        assert headline(made, limit=3).endswith("residual EntityType eq 'Client'   limit 3")
        assert headline(made, limit=3, is_latest=True).endswith("   latest 3")
        assert (
            explain(plan_query(clients, {}), limit=0)
            .splitlines()[0]
            .endswith("   limit 0   REFUSED")
        )

    def test_what_is_long_is_cut(self) -> None:
        line = headline(plan_query(employees, {"dept": "Sales"}, c.last.in_(["x" * 50] * 50)))

        assert len(line) < 2 * SHOWN_CHARACTERS_MAX + 50
        assert line.endswith("...")


class TestAdvice:
    def test_nothing_is_advised_where_only_the_wanted_is_read(self) -> None:
        assert advise(plan_query(employees, {"dept": "Sales"})) == []
        assert advise(plan_query(employees, {"dept": "Sales"}, c.id.in_([]))) == []

    def test_an_index_that_is_there_comes_first_by_the_name_it_has_in_the_program(self) -> None:
        first = advise(plan_query(clients, {}, k.email == "x"))[0]

        assert str(first) == "read .via(by_email) (partition scan)"

    def test_an_index_that_leaves_entities_out_is_not_advised(self) -> None:
        texts = [advice.text for advice in advise(plan_query(clients, {}, k.age == 40))]

        assert not any("by_age" in text for text in texts)

    def test_an_index_of_a_field_that_may_be_none_serves_who_asks_for_a_value(self) -> None:
        texts = [advice.text for advice in advise(plan_query(clients, {}, k.nick == "J"))]

        assert texts[0] == "read .via(by_nick)"

    def test_a_text_is_listed(self) -> None:
        (advice,) = advise(plan_query(employees, {"dept": "Sales"}, c.last == "Cao"))

        assert str(advice) == 'add list_index(Employee, row="last_{last}") (range)'

    def test_an_equal_field_comes_before_a_range(self) -> None:
        condition = (c.age > 40) & (c.grade == Grade.SENIOR)

        texts = [each.text for each in advise(plan_query(employees, {}, condition))]

        assert 'row="grade_{grade}_{age:08d}_{id:06d}"' in texts[-1]
        assert 'partition="{grade}", row="{age:08d}_{id:06d}_{dept}"' in texts[1]

    def test_where_keys_could_meet_another_table_is_advised(self) -> None:
        (advice,) = advise(plan_query(clients, {"country": "NL"}, k.age > 3))

        assert (
            advice.text == 'add index(Client, table="clientsbyage", row="age_{age:03d}_{id:06d}")'
        )

    def test_what_no_key_can_hold_is_not_advised(self) -> None:
        assert advise(plan_query(employees, {"dept": "Sales"}, c.rating > 1.0)) == []

    def test_a_range_of_partitions_needs_one_of_them(self) -> None:
        (advice,) = advise(plan_query(employees, {"dept": starting_with("S")}))

        assert str(advice) == "give dept=... (range over 'emp_')"

    @pytest.mark.parametrize(
        "condition",
        [
            c.age > 40,
            c.age == 40,
            c.email == "x",
            c.grade == Grade.SENIOR,
            c.joined > dt.datetime(2014, 1, 1, tzinfo=dt.UTC),
            c.born == dt.date(2014, 1, 1),
            c.badge == UUID(int=7),
            c.amount == Decimal("9.50"),
            c.is_manager == True,  # noqa: E712
            (c.is_manager == True) & (c.email == "x") & (c.last == "y"),  # noqa: E712
            (c.grade == Grade.SENIOR) & c.last.startswith("x"),
            c.age.in_([1, 2]) & (c.born > dt.date(2014, 1, 1)),
        ],
    )
    @pytest.mark.parametrize("keys", [{}, {"dept": "Sales"}])
    def test_every_index_that_is_advised_can_be_declared_and_keeps_its_promise(
        self, keys: dict[str, Any], condition: Condition
    ) -> None:
        made = plan_query(employees, keys, condition)
        advised = advise(made)

        assert advised
        for advice in advised:
            assert worse(made, advice.plan)
            assert advice.plan.kind not in (QueryKind.TABLE, QueryKind.MULTI_PARTITION)
            declaration = advice.text.partition("add ")[2]
            if declaration:
                known = employees.indexes
                eval(declaration, {"Employee": Employee, "index": index, "list_index": list_index})
                employees.declare(indexes=known)
