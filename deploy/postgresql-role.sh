#!/bin/sh
# Creates the role of the front ends when the container of PostgreSQL makes its database. It may log in
# and nothing else: `partita fleet init --role partita` grants what it needs.
set -eu
export PARTITA_PASSWORD_FILE="${PARTITA_PASSWORD_FILE:-/run/secrets/partita_password}"
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\set password `cat "$PARTITA_PASSWORD_FILE"`
CREATE ROLE partita LOGIN PASSWORD :'password';
SQL
