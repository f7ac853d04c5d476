"""Copies of accounts into this database that are not complete.

    copy       account | source, shift of its times, the run that writes
    copy_part  account, kind, name | head, id, last key, is_done, differs
    copy_id    account, kind (e extents, c contents), number in the source | number here

While an account has a row in `copy`, front ends do not open it. Nothing that is copied has its name
before the end: `tables`, `queue`, `container` and `setting` get their rows when `copy` loses its
one, in one transaction.
"""

TABLES = """
CREATE TABLE partita.copy (
  account_id int PRIMARY KEY REFERENCES partita.account (id), source text NOT NULL,
  shift bigint NOT NULL, run uuid NOT NULL
);
CREATE TABLE partita.copy_part (
  account_id int NOT NULL, kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
  head bytea NOT NULL, target bigint NOT NULL, last bytea, is_done boolean NOT NULL,
  differs boolean NOT NULL, PRIMARY KEY (account_id, kind, name)
);
CREATE TABLE partita.copy_id (
  account_id int NOT NULL, kind text COLLATE "C" NOT NULL, source bigint NOT NULL,
  target bigint NOT NULL, PRIMARY KEY (account_id, kind, source),
  UNIQUE (account_id, kind, target)
);
"""

FUNCTIONS = ""

PRIVILEGES = {"copy": "SELECT"}
"""What the role of front ends may do, by table; copies are run by the owner of the schema."""
