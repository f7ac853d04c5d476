"""The load of tables by ranges of keys, as axes (`partita.heat.packing`).

    heat_live   front end, at (seconds since 1970) | over how many seconds | axes of all accounts
    heat        account, table (lower-cased; '' the others), seconds (60, 600), start, front end
                | name, sums, axis

Each front end adds a row to `heat_live` every few seconds, for balancers and the open minute, and
the rows of its tables to `heat` every minute. The axes of ten minutes are of all front ends: their
front end is the nil UUID.
"""

from partita.heat.axes import COUNTERS

_SUMS = "".join(f"{counter} bigint NOT NULL, " for counter in COUNTERS)
TABLES = f"""
CREATE TABLE partita.heat_live (
  front_end uuid NOT NULL, at bigint NOT NULL, seconds double precision NOT NULL,
  heat bytea NOT NULL, PRIMARY KEY (front_end, at)
);
CREATE TABLE partita.heat (
  account_id int NOT NULL REFERENCES partita.account (id), folded text COLLATE "C" NOT NULL,
  seconds int NOT NULL, start bigint NOT NULL, front_end uuid NOT NULL, name text NOT NULL,
  {_SUMS}axis bytea NOT NULL, PRIMARY KEY (account_id, folded, seconds, start, front_end)
);
CREATE INDEX heat_start ON partita.heat (seconds, start);
"""

FUNCTIONS = ""

PRIVILEGES = {
    "heat_live": "SELECT, INSERT, UPDATE, DELETE",
    "heat": "SELECT, INSERT, UPDATE, DELETE",
}
"""What the role of front ends may do, by table."""
