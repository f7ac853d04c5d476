"""The guide's three patterns of secondary indexes, claim by claim, on an account in this process.

Intra-partition secondary index, inter-partition secondary index, index entities.
"""

import asyncio
from typing import Any

import pytest

from guide.stored import keys_in, opened
from partita.errors import (
    DefinitionError,
    InvalidKeyError,
    LimitExceededError,
    UnavailableError,
)
from partita.patterns import (
    Database,
    EntityNotFoundError,
    IndexNotReadableError,
    ListIndex,
    RawEntity,
    ScanRefusedError,
    Table,
    UniqueViolationError,
    between,
    connect,
    entity,
    evolve,
    index,
    list_index,
)
from partita.patterns.faults import Faults
from partita.patterns.planning.requests import QueryKind
from partita.service.hosting.in_process import LocalAccount

# ---------------------------------------------------------------------------------------------
# Intra-partition secondary index pattern


@entity(table="Employees", partition="{dept}", row="empid_{id:06d}")
class Employee:
    dept: str
    id: int
    first: str
    email: str
    age: int = 0
    badge: str | None = None


by_email = index(Employee, row="email_{email}", unique=True)
by_badge = index(Employee, row="badge_{badge}", unique=True)
adults = index(Employee, row="adult_{age:03d}_{id:06d}", where=lambda person: person.age >= 18)


@entity(table="Clerks", partition="{dept}", row="empid_{id:06d}")
class Clerk:
    dept: str
    id: int
    first: str
    email: str
    age: int = 0


slim = index(Clerk, row="email_{email}", unique=True, copy=["first"])

STAFF = (
    (99, "Zoe", "zoe@contoso.com"),
    (100, "Anna", "anna@contoso.com"),
    (150, "Bert", "bert@contoso.com"),
    (199, "Abe", "abe@contoso.com"),
    (223, "Jones", "jonesj@contoso.com"),
)


@pytest.fixture
async def employees(partita_db: Database) -> Table[Employee]:
    db = await opened(partita_db, Employee)
    table = db.table(Employee)
    await table.save_all(
        Employee(dept="Sales", id=number, first=first, email=email)
        for number, first, email in STAFF
    )
    return table


class TestIntraPartitionSecondaryIndexPattern:
    async def test_the_copies_have_the_row_keys_of_the_guide(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        assert await keys_in(partita_db, "Employees") == [
            "Sales/email_abe@contoso.com",
            "Sales/email_anna@contoso.com",
            "Sales/email_bert@contoso.com",
            "Sales/email_jonesj@contoso.com",
            "Sales/email_zoe@contoso.com",
            "Sales/empid_000099",
            "Sales/empid_000100",
            "Sales/empid_000150",
            "Sales/empid_000199",
            "Sales/empid_000223",
        ]

    async def test_a_look_up_by_id_or_by_email_is_one_point_query(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        with partita_db.measuring() as by_id:
            one = await employees.get(dept="Sales", id=223)
        with partita_db.measuring() as by_address:
            same = await employees.via(by_email).get(dept="Sales", email="jonesj@contoso.com")

        assert one == same
        assert (by_id.requests, by_address.requests) == (1, 1)
        query = employees.via(by_email).range(dept="Sales", email="jonesj@contoso.com")
        assert query.plan.kind is QueryKind.POINT

    async def test_a_range_of_ids_comes_in_the_order_of_ids(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await employees.partition(dept="Sales").range(id=between(100, 199)).list()

        assert [each.id for each in found] == [100, 150, 199]
        assert cost.requests == 1

    async def test_addresses_that_begin_with_a_come_in_the_order_of_addresses(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await employees.via(by_email).prefix(dept="Sales", email="a").list()

        assert [each.email for each in found] == ["abe@contoso.com", "anna@contoso.com"]
        assert cost.requests == 1

    async def test_without_an_index_a_look_up_by_another_property_scans_the_partition(
        self, employees: Table[Employee]
    ) -> None:
        scan = employees.partition(dept="Sales").where(employees.c.first == "Bert")

        assert [each.id for each in await scan.list()] == [150]
        assert scan.plan.kind is not QueryKind.POINT
        with pytest.raises(ScanRefusedError):
            await employees.where(employees.c.first == "Bert").list()

    async def test_an_entity_and_its_copies_are_one_request(
        self, partita_db: Database, employees: Table[Employee], partita_faults: Faults
    ) -> None:
        partita_faults.requests.clear()

        await employees.save(Employee(dept="Sales", id=7, first="Jun", email="junc@contoso.com"))

        assert [line.split("/")[-1] for line in partita_faults.requests] == ["$batch"]

    async def test_a_group_that_is_refused_changes_no_copy(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        before = await keys_in(partita_db, "Employees")
        taken = Employee(dept="Sales", id=7, first="Jun", email="zoe@contoso.com", badge="B7")

        with pytest.raises(UniqueViolationError) as refused:
            await employees.save(taken)

        assert refused.value.index is by_email
        assert await keys_in(partita_db, "Employees") == before

    async def test_a_changed_value_moves_its_copy_in_the_same_request(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        bert = await employees.get(dept="Sales", id=150)

        with partita_db.measuring() as cost:
            await employees.patch(bert, email="bertie@contoso.com")

        assert cost.requests == 1
        assert await employees.via(by_email).get_or_none(dept="Sales", email=bert.email) is None
        moved = await employees.via(by_email).get(dept="Sales", email="bertie@contoso.com")
        assert moved.id == 150

    async def test_a_deleted_entity_leaves_no_copy(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        for each in await employees.partition(dept="Sales").all().list():
            await employees.delete(each)

        assert await keys_in(partita_db, "Employees") == []

    async def test_a_copy_that_two_entities_could_share_is_refused_when_it_is_declared(
        self,
    ) -> None:
        with pytest.raises(
            DefinitionError, match="The copies of two entities could have the same key"
        ):
            index(Clerk, row="first_{first}")

    async def test_the_same_value_may_be_used_in_another_partition(
        self, employees: Table[Employee]
    ) -> None:
        await employees.save(Employee(dept="R&D", id=99, first="Zoe", email="zoe@contoso.com"))

        found = await employees.via(by_email).get(dept="R&D", email="zoe@contoso.com")
        assert found.dept == "R&D"

    async def test_padded_numbers_sort_as_numbers_and_never_outgrow_the_padding(
        self, employees: Table[Employee]
    ) -> None:
        await employees.save(Employee(dept="Sales", id=1000, first="Mia", email="mia@contoso.com"))

        numbers = [each.id async for each in employees.partition(dept="Sales")]
        assert numbers == [99, 100, 150, 199, 223, 1000]
        with pytest.raises(InvalidKeyError):
            await employees.get(dept="Sales", id=1_000_000)

    async def test_a_copy_need_not_hold_all_properties(self, partita_db: Database) -> None:
        db = await opened(partita_db, Clerk)
        clerks = db.table(Clerk)
        await clerks.save(Clerk(dept="Sales", id=7, first="Jun", email="junc@contoso.com", age=47))

        stored = await db.raw("Clerks").get("Sales", "email_junc@contoso.com")
        with db.measuring() as of_copied:
            names = await clerks.via(slim).prefix(dept="Sales", email="j").select("first").list()
        with db.measuring() as of_others:
            whole = await clerks.via(slim).get(dept="Sales", email="junc@contoso.com")

        assert (stored.properties["First"], stored.properties.get("Age")) == ("Jun", None)
        assert ([each.first for each in names], of_copied.requests) == (["Jun"], 1)
        assert (whole.age, of_others.requests) == (47, 2)

    async def test_a_whole_copy_saves_the_second_request(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await employees.via(by_email).prefix(dept="Sales", email="").list()

        assert [each.first for each in found] == ["Abe", "Anna", "Bert", "Jones", "Zoe"]
        assert cost.requests == 1

    async def test_an_entity_without_the_value_has_no_copy(
        self, partita_db: Database, employees: Table[Employee]
    ) -> None:
        zoe = await employees.get(dept="Sales", id=99)

        await employees.patch(zoe, badge="B99")
        found = await employees.via(by_badge).range(dept="Sales").list()

        assert [each.id for each in found] == [99]

    async def test_an_index_may_leave_entities_out_by_a_condition(
        self, employees: Table[Employee]
    ) -> None:
        bert = await employees.get(dept="Sales", id=150)
        assert await employees.via(adults).range(dept="Sales").list() == []

        bert = await employees.patch(bert, age=20)
        assert [each.id async for each in employees.via(adults).range(dept="Sales")] == [150]
        await employees.patch(bert, age=17)
        assert await employees.via(adults).range(dept="Sales").list() == []

    async def test_copies_count_against_the_hundred_operations_of_a_group(
        self, partita_db: Database
    ) -> None:
        clerks = (await opened(partita_db, Clerk)).table(Clerk)
        many = [Clerk(dept="Sales", id=n, first="A", email=f"{n}@contoso.com") for n in range(60)]

        with partita_db.measuring() as cost:
            await clerks.save_all(many)

        # Three operations are kept free for each: one entity, and a copy that may move.
        assert cost.requests == 2

    async def test_copies_that_would_lie_on_the_entities_are_refused(self) -> None:
        with pytest.raises(DefinitionError, match="Begin them with a distinct prefix"):
            index(Clerk, row="empid_{email}", unique=True)


# ---------------------------------------------------------------------------------------------
# Inter-partition secondary index pattern


@entity(table="People", partition="empid_{dept}", row="{id:06d}")
class Person:
    dept: str
    id: int
    first: str
    email: str
    age: int = 0


unique_email = index(Person, row="email_{email}", unique=True)
email_partition = index(Person, partition="email_{dept}", row="{email}")
company_wide = index(
    Person, table="PeopleByEmail", partition="{email}", row="{dept:esc}_{id:06d}", copy=["first"]
)


@pytest.fixture
async def people(partita_db: Database) -> Table[Person]:
    db = await opened(partita_db, Person)
    table = db.table(Person)
    for number, first, email in STAFF:
        await table.save(Person(dept="Sales", id=number, first=first, email=email))
    return table


class TestInterPartitionSecondaryIndexPattern:
    async def test_the_copies_lie_in_the_partitions_of_the_guide(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        await partita_db.drain()

        keys = await keys_in(partita_db, "People")
        assert "empid_Sales/000223" in keys
        assert "email_Sales/jonesj@contoso.com" in keys
        assert await keys_in(partita_db, "PeopleByEmail") == [
            f"{email}/Sales_{number:06d}"
            for number, _, email in sorted(STAFF, key=lambda one: one[2])
        ]

    async def test_both_look_ups_are_point_queries(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        await partita_db.drain()

        with partita_db.measuring() as by_id:
            one = await people.get(dept="Sales", id=223)
        with partita_db.measuring() as by_address:
            via = people.via(email_partition)
            same = await via.get(dept="Sales", email="jonesj@contoso.com")

        assert one == same
        assert (by_id.requests, by_address.requests) == (1, 1)

    async def test_ranges_come_in_either_order(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        await partita_db.drain()

        of_ids = people.partition(dept="Sales").range(id=between(100, 199))
        of_addresses = people.via(email_partition).prefix(dept="Sales", email="a")

        assert [each.id async for each in of_ids] == [100, 150, 199]
        assert [each.id async for each in of_addresses] == [199, 100]

    async def test_copies_are_eventually_consistent(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        zoe = await people.get(dept="Sales", id=99)
        by_address = people.via(email_partition)

        assert await by_address.get_or_none(dept="Sales", email=zoe.email) is None
        await partita_db.drain()
        assert (await by_address.get(dept="Sales", email=zoe.email)).id == 99

    async def test_a_save_costs_one_group_and_one_message(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        with partita_db.measuring() as cost:
            await people.save(Person(dept="Sales", id=7, first="Jun", email="junc@contoso.com"))

        assert cost.requests == 2

    async def test_a_lost_message_only_delays_the_copy(
        self,
        partita_account: LocalAccount,
        partita_db: Database,
        people: Table[Person],
        partita_faults: Faults,
    ) -> None:
        await partita_db.drain()
        partita_faults.refuse_connections(times=100, match="/messages")
        await people.save(Person(dept="Sales", id=7, first="Jun", email="junc@contoso.com"))
        partita_faults.stop()

        async with connect(partita_account) as other:
            other.table(Person)
            await other.create_tables()
            assert (await other.work_once()).is_idle
            assert (await other.sweep(age=0)).entries == 1
            found = (
                await other.table(Person).via(company_wide).range(email="junc@contoso.com").list()
            )
        assert [each.id for each in found] == [7]

    async def test_a_message_that_comes_twice_does_no_harm(
        self, partita_account: LocalAccount, partita_db: Database, people: Table[Person]
    ) -> None:
        queue = partita_account.queues.get_queue_client("partita-outbox")
        for message in list(queue.peek_messages(32)):
            queue.send_message(message.content)

        await partita_db.drain()

        assert await partita_db.verify(Person) == []

    async def test_a_copy_follows_changes_and_goes_with_its_entity(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        zoe, bert = await people.get(dept="Sales", id=99), await people.get(dept="Sales", id=150)
        await people.patch(zoe, email="zz@contoso.com")
        await people.delete(bert)
        await partita_db.drain()

        addresses = [each.email async for each in people.via(email_partition).range(dept="Sales")]
        assert addresses == [
            "abe@contoso.com",
            "anna@contoso.com",
            "jonesj@contoso.com",
            "zz@contoso.com",
        ]
        assert await partita_db.verify(Person) == []

    async def test_a_reader_that_must_not_see_old_copies_verifies(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        await partita_db.drain()
        zoe = await people.get(dept="Sales", id=99)
        await people.patch(zoe, email="zz@contoso.com")

        old = people.via(email_partition).range(dept="Sales", email="zoe@contoso.com")
        checked = people.via(email_partition, verify=True)

        assert [each.id async for each in old] == [99]
        assert await checked.get_or_none(dept="Sales", email="zoe@contoso.com") is None

    async def test_an_old_copy_cannot_be_saved_over_a_newer_entity(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        await partita_db.drain()
        zoe = await people.get(dept="Sales", id=99)
        await people.patch(zoe, age=30)
        from_copy = await people.via(email_partition).get(dept="Sales", email=zoe.email)

        with pytest.raises(Exception, match="differs from the stored entity"):
            await people.save(evolve(from_copy, first="Zoey"))

    async def test_a_copy_elsewhere_may_hold_part_of_the_entity(
        self, partita_db: Database, people: Table[Person]
    ) -> None:
        await partita_db.drain()

        with partita_db.measuring() as cost:
            by_address = people.via(company_wide).range(email="zoe@contoso.com")
            found = await by_address.select("first", "dept").list()

        assert [(each.first, each.dept) for each in found] == [("Zoe", "Sales")]
        assert cost.requests == 1

    async def test_look_ups_and_entities_load_different_partitions(
        self, partita_db: Database, people: Table[Person], partita_faults: Faults
    ) -> None:
        await partita_db.drain()
        partita_faults.requests.clear()

        await people.via(email_partition).get(dept="Sales", email="zoe@contoso.com")

        (request,) = partita_faults.requests
        assert "empid_Sales" not in request
        assert "email_Sales" in request

    async def test_an_index_elsewhere_is_unique_by_claims_of_whole_values(
        self, partita_db: Database
    ) -> None:
        @entity(table="Agents", partition="{dept}", row="{id:06d}")
        class Agent:
            dept: str
            id: int
            email: str

        with pytest.raises(DefinitionError, match="only a hash of 'email'"):
            index(Agent, table="Hashed", partition="{email:hash16}", row="one", unique=True)
        index(Agent, table="AgentsByEmail", partition="{email}", row="one", unique=True)
        agents = partita_db.table(Agent)
        await partita_db.create_tables()
        await agents.save(Agent(dept="Sales", id=1, email="a@contoso.com"))
        with pytest.raises(UniqueViolationError):
            await agents.save(Agent(dept="Legal", id=1, email="a@contoso.com"))

    async def test_numbers_in_its_row_keys_are_padded(self) -> None:
        with pytest.raises(DefinitionError):
            index(Clerk, partition="id_{dept}", row="{id}")


# ---------------------------------------------------------------------------------------------
# Index entities pattern


@entity(table="Members", partition="{dept}", row="empid_{id:06d}")
class Member:
    dept: str
    id: int
    last: str
    age: int = 0


in_rows = list_index(Member, row="lastrow_{last}")
in_partition = list_index(Member, row="lastlist_{last}", store="partition")
in_table = list_index(
    Member, table="MembersByLast", partition="{last}", row="members", store="table"
)
in_blob = list_index(Member, partition="{last}", row="members", store="blob")
STORAGES = [in_rows, in_partition, in_table, in_blob]
NAMES = ["one row a member", "option 2", "option 3", "option 1"]


@pytest.fixture
async def members(partita_db: Database) -> Table[Member]:
    db = await opened(partita_db, Member)
    table = db.table(Member)
    for dept, number, last in (
        ("Sales", 152, "Jones"),
        ("Sales", 97, "Jones"),
        ("Sales", 151, "Cao"),
        ("R&D", 5, "Jones"),
    ):
        await table.save(Member(dept=dept, id=number, last=last))
    await db.drain()
    return table


def jones(members: Table[Member], by: ListIndex[Member], **given: Any) -> Any:
    """All of the name Jones: of Sales, or of the company where the index is by name alone."""
    fields = {"dept": "Sales", "last": "Jones"} if by.is_local else {"last": "Jones"}
    return members.via(by).range(**{**fields, **given})


class TestIndexEntitiesPattern:
    @pytest.mark.parametrize("by", STORAGES, ids=NAMES)
    async def test_all_entities_that_share_a_value_are_found_in_the_order_of_ids(
        self, members: Table[Member], by: ListIndex[Member]
    ) -> None:
        found = sorted([(each.dept, each.id) async for each in jones(members, by)])

        in_sales = [("Sales", 97), ("Sales", 152)]
        assert found == (in_sales if by.is_local else [("R&D", 5), *in_sales])

    @pytest.mark.parametrize("by", STORAGES, ids=NAMES)
    async def test_it_takes_one_request_for_the_list_and_one_for_each_entity(
        self, partita_db: Database, members: Table[Member], by: ListIndex[Member]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await jones(members, by).list()

        assert cost.requests == 1 + len(found)

    @pytest.mark.parametrize("by", STORAGES, ids=NAMES)
    async def test_a_deleted_entity_leaves_the_list(
        self, partita_db: Database, members: Table[Member], by: ListIndex[Member]
    ) -> None:
        await members.delete(await members.get(dept="Sales", id=97))
        await partita_db.drain()

        found = [each.id async for each in jones(members, by)]
        assert sorted(found) == ([152] if by.is_local else [5, 152])

    @pytest.mark.parametrize("by", STORAGES, ids=NAMES)
    async def test_a_changed_name_leaves_one_list_and_joins_another(
        self, partita_db: Database, members: Table[Member], by: ListIndex[Member]
    ) -> None:
        await members.patch(await members.get(dept="Sales", id=151), last="Jones")
        await members.patch(await members.get(dept="Sales", id=97), last="Cao")
        await partita_db.drain()

        assert sorted([each.id async for each in jones(members, by)]) == (
            [151, 152] if by.is_local else [5, 151, 152]
        )
        assert [each.id async for each in jones(members, by, last="Cao")] == [97]

    @pytest.mark.parametrize("by", STORAGES, ids=NAMES)
    async def test_adders_at_once_lose_nobody(
        self, partita_db: Database, members: Table[Member], by: ListIndex[Member]
    ) -> None:
        await asyncio.gather(
            *(members.save(Member(dept="Sales", id=n, last="Smith")) for n in range(300, 308))
        )
        await partita_db.drain()

        found = [each.id async for each in jones(members, by, last="Smith")]
        assert sorted(found) == list(range(300, 308))
        assert await partita_db.verify(Member) == []

    @pytest.mark.parametrize("by", STORAGES, ids=NAMES)
    async def test_any_text_may_be_the_value(
        self, partita_db: Database, members: Table[Member], by: ListIndex[Member]
    ) -> None:
        odd = "O'Brien-Łącki & Söhne.."
        await members.save(Member(dept="Sales", id=400, last=odd))
        await partita_db.drain()

        assert [each.id async for each in jones(members, by, last=odd)] == [400]

    async def test_option_2_keeps_sorted_ids_in_an_entity_of_the_same_partition(
        self, partita_db: Database, members: Table[Member]
    ) -> None:
        stored = await partita_db.raw("Members").get("Sales", "lastlist_Jones")

        assert stored.properties["Ids0"] == '[["empid_000097"],["empid_000152"]]'

    async def test_option_2_adds_an_entity_and_its_id_in_one_group_after_one_look(
        self, partita_db: Database, members: Table[Member], partita_faults: Faults
    ) -> None:
        partita_faults.requests.clear()

        await members.save(Member(dept="Sales", id=1, last="Jones"))

        tables = [line for line in partita_faults.requests if "messages" not in line]
        assert len(tables) == 2
        assert "lastlist_Jones" in tables[0]
        assert "$batch" in tables[1]

    async def test_option_2_starts_over_after_a_concurrent_change(
        self, partita_db: Database, members: Table[Member], partita_faults: Faults
    ) -> None:
        partita_faults.requests.clear()

        await asyncio.gather(
            *(members.save(Member(dept="Sales", id=n, last="Jones")) for n in (1, 2, 3))
        )

        assert sum("$batch" in line for line in partita_faults.requests) > 3
        found = [each.id async for each in jones(members, in_partition)]
        assert found == [1, 2, 3, 97, 152]

    async def test_a_list_above_64_kib_goes_over_several_properties(
        self, partita_db: Database, members: Table[Member]
    ) -> None:
        await put_a_list(partita_db, "Huge", members=3_000)

        await members.save(Member(dept="Sales", id=999_999, last="Huge"))

        stored = await partita_db.raw("Members").get("Sales", "lastlist_Huge")
        pieces = sorted(name for name in stored.properties if name.startswith("Ids"))
        assert len(pieces) > 1
        assert "empid_999999" in str(stored.properties[pieces[-1]])

    async def test_a_list_above_1_mib_is_refused_with_what_to_do(
        self, partita_db: Database, members: Table[Member]
    ) -> None:
        await put_a_list(partita_db, "Huge", members=30_825)

        with pytest.raises(LimitExceededError, match="do not fit") as refused:
            await members.save(Member(dept="Sales", id=999_999, last="Huge"))

        assert 'store="blob"' in refused.value.hint

    async def test_one_row_a_member_knows_no_contention_and_needs_no_look(
        self, partita_db: Database, partita_faults: Faults
    ) -> None:
        listed = (await opened(partita_db, Listed)).table(Listed)
        partita_faults.requests.clear()

        await asyncio.gather(*(listed.save(Listed(dept="Sales", id=n, last="J")) for n in range(8)))

        assert len(partita_faults.requests) == 8

    async def test_an_index_entity_that_a_persons_name_could_lie_on_is_refused(self) -> None:
        with pytest.raises(DefinitionError, match="Begin them with a distinct prefix"):
            list_index(Numbered, row="{last}", store="partition")

    async def test_a_prefix_is_enough_where_the_entities_have_numbers_for_keys(self) -> None:
        made = list_index(Numbered, row="last_{last}", store="partition")

        assert made.is_local

    async def test_a_look_up_over_the_whole_company_needs_another_partition(self) -> None:
        assert in_partition.key_fields == ("dept", "last")
        assert in_table.key_fields == ("last",)
        assert in_blob.key_fields == ("last",)
        with pytest.raises(DefinitionError, match="own partition"):
            list_index(Member, partition="{last}", row="of", store="partition", name="nowhere")

    async def test_lists_elsewhere_follow_eventually(
        self, partita_db: Database, members: Table[Member]
    ) -> None:
        await members.save(Member(dept="Sales", id=1, last="Jones"))

        assert [each.id async for each in jones(members, in_partition)] == [1, 97, 152]
        assert sorted([each.id async for each in jones(members, in_table)]) == [5, 97, 152]
        await partita_db.drain()
        assert sorted([each.id async for each in jones(members, in_table)]) == [1, 5, 97, 152]

    async def test_a_worker_that_stops_half_way_is_followed_by_one_that_finishes(
        self, partita_db: Database, members: Table[Member], partita_faults: Faults
    ) -> None:
        await members.save(Member(dept="Sales", id=1, last="Jones"))
        partita_faults.fail_next(match=lambda line: "PUT" in line and "partita-indexes" in line)

        with pytest.raises(UnavailableError):
            await partita_db.drain()
        await partita_db.drain()

        assert await partita_db.verify(Member) == []


@entity(table="Listed", partition="{dept}", row="empid_{id:06d}")
class Listed:
    dept: str
    id: int
    last: str


list_index(Listed, row="last_{last}")


@entity(table="Numbered", partition="{dept}", row="{id:06d}")
class Numbered:
    dept: str
    id: int
    last: str


async def put_a_list(db: Database, last: str, *, members: int) -> None:
    """An index entity as years of hiring would leave it."""
    ids = "[" + ",".join(f'["empid_{number:06d}"]' for number in range(members)) + "]"
    pieces = [ids[start : start + 32_000] for start in range(0, len(ids), 32_000)]
    properties: dict[str, Any] = {f"Ids{place}": piece for place, piece in enumerate(pieces)}
    properties["EntityType"] = f"Member@{in_partition.name}"
    await db.raw("Members").save(RawEntity("Sales", f"lastlist_{last}", properties))


# ---------------------------------------------------------------------------------------------
# The life of an index


@entity(table="Guests", partition="{hotel}", row="guest_{id:06d}")
class Guest:
    hotel: str
    id: int
    name: str


@entity(table="Guests", partition="{hotel}", row="guest_{id:06d}", name="Guest")
class NamedGuest:
    hotel: str
    id: int
    name: str


by_name = list_index(NamedGuest, row="name_{name}")


class TestAnIndexThatIsDeclaredOverStoredEntities:
    async def test_it_cannot_be_read_before_it_was_rebuilt(
        self, partita_account: LocalAccount
    ) -> None:
        async with connect(partita_account) as before:
            await opened(before, Guest)
            await before.table(Guest).save(Guest(hotel="Ritz", id=1, name="Jun"))

        async with connect(partita_account) as db:
            guests = (await opened(db, NamedGuest)).table(NamedGuest)
            await guests.save(NamedGuest(hotel="Ritz", id=2, name="Ann"))
            with pytest.raises(IndexNotReadableError):
                await guests.via(by_name).range(hotel="Ritz", name="Ann").list()

            assert await db.rebuild(by_name) == 2
            found = [each.id async for each in guests.via(by_name).range(hotel="Ritz")]
            assert found == [2, 1]

    async def test_drift_is_found_and_repaired(self, partita_account: LocalAccount) -> None:
        async with connect(partita_account) as db:
            guests = (await opened(db, NamedGuest)).table(NamedGuest)
            await guests.save(NamedGuest(hotel="Ritz", id=1, name="Jun"))
            stray = db.raw("Guests")
            await stray.delete(await stray.get("Ritz", "name_Jun~guest_000001"))

            drifts = await db.verify(NamedGuest)
            assert [(each.kind, each.what) for each in drifts] == [("missing", by_name.name)]
            assert await db.repair(NamedGuest, drifts) == 1
            assert await db.verify(NamedGuest) == []

    async def test_a_disabled_index_leaves_no_rows_and_is_not_read(
        self, partita_account: LocalAccount
    ) -> None:
        async with connect(partita_account) as db:
            guests = (await opened(db, NamedGuest)).table(NamedGuest)
            await guests.save(NamedGuest(hotel="Ritz", id=1, name="Jun"))

            assert await db.disable(by_name) == 1
            await guests.save(NamedGuest(hotel="Ritz", id=2, name="Ann"))

            assert await keys_in(db, "Guests") == ["Ritz/guest_000001", "Ritz/guest_000002"]
            with pytest.raises(IndexNotReadableError):
                await guests.via(by_name).range(hotel="Ritz", name="Jun").list()

    async def test_who_lost_its_index_is_still_found_by_key(
        self, partita_account: LocalAccount
    ) -> None:
        async with connect(partita_account) as db:
            guests = (await opened(db, NamedGuest)).table(NamedGuest)
            await db.disable(by_name)
            await guests.save(NamedGuest(hotel="Ritz", id=1, name="Jun"))

            assert (await guests.get(hotel="Ritz", id=1)).name == "Jun"
            with pytest.raises(EntityNotFoundError):
                await guests.get(hotel="Ritz", id=2)
