"""The tables of the state's database; a change of one needs a revision in migrations/versions."""

from typing import Any

import sqlalchemy as sa

_NAME, _TARGET = sa.String(100), sa.String(200)
_TIME = sa.Float(53)  # seconds since 1970
tables = sa.MetaData()


def _table(name: str, *columns: "sa.Column[Any]") -> sa.Table:
    return sa.Table(f"torchgate_{name}", tables, *columns)


def _key(name: str, kind: Any) -> "sa.Column[Any]":
    return sa.Column(name, kind, primary_key=True)


def _value(name: str, kind: Any, *, index: bool | None = None) -> "sa.Column[Any]":
    return sa.Column(name, kind, nullable=False, index=index)


schema = _table("schema", _key("version", sa.Integer))  # for releases that know no revisions
revisions = _table("revision", _key("version_num", sa.String(32)))  # Alembic's
models = _table("models", _key("model", _TARGET), _value("revision", sa.Integer), _value("document", sa.Text))
events = _table(
    "events",
    _key("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),  # SQLite numbers only an INTEGER by itself
    _value("time", _TIME),
    _value("gateway", _NAME),
    _value("actor", _TARGET),
    _value("action", sa.String(50)),
    _value("model", _TARGET, index=True),
    _value("subject", _TARGET),
    _value("reason", sa.Text),
    _value("outcome", sa.String(20)),
    _value("detail", sa.Text),
    sa.Column("before", sa.Text),
    sa.Column("after", sa.Text),
)
guard_counts = _table(
    "guard_counts",
    _key("model", _TARGET),
    _key("rollout", sa.Integer),
    _key("gateway", _NAME),
    _value("document", sa.Text),
)
progress = _table("rollout_progress", _key("model", _TARGET), _key("rollout", sa.Integer), _value("document", sa.Text))
leases = _table("leases", _key("name", _NAME), _value("holder", _NAME), _value("beat", sa.Integer))
gateways = _table("gateways", _key("gateway", _NAME), _value("document", sa.Text))
secrets = _table("secrets", _key("name", _NAME), _value("value", _TARGET))
manifest_counters = _table(
    "manifest_counters", _key("key_id", _NAME), _value("counter", sa.BigInteger), _value("sha256", _NAME)
)
feedback = _table(
    "feedback",
    _key("answer", _NAME),
    _key("item", sa.Integer),
    _value("model", _TARGET),
    _value("version", _TARGET),
    _value("predicted", _TARGET),
    _value("label", _TARGET),
    _value("is_correct", sa.Boolean),
    _value("time", _TIME, index=True),
)
