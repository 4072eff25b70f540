"""The tables as they were before there were revisions (schema 1)."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    name, target, text = sa.String(100), sa.String(200), sa.Text
    op.create_table("torchgate_schema", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "torchgate_models",
        sa.Column("model", target, primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("document", text, nullable=False),
    )
    op.create_table(
        "torchgate_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("time", sa.Float(53), nullable=False),
        sa.Column("gateway", name, nullable=False),
        sa.Column("actor", target, nullable=False),
        sa.Column("action", sa.String(50), nullable=False),
        sa.Column("model", target, nullable=False, index=True),
        sa.Column("subject", target, nullable=False),
        sa.Column("reason", text, nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("detail", text, nullable=False),
        sa.Column("before", text),
        sa.Column("after", text),
    )
    op.create_table(
        "torchgate_guard_counts",
        sa.Column("model", target, primary_key=True),
        sa.Column("rollout", sa.Integer, primary_key=True),
        sa.Column("gateway", name, primary_key=True),
        sa.Column("document", text, nullable=False),
    )
    op.create_table(
        "torchgate_rollout_progress",
        sa.Column("model", target, primary_key=True),
        sa.Column("rollout", sa.Integer, primary_key=True),
        sa.Column("document", text, nullable=False),
    )
    op.create_table(
        "torchgate_leases",
        sa.Column("name", name, primary_key=True),
        sa.Column("holder", name, nullable=False),
        sa.Column("beat", sa.Integer, nullable=False),
    )
    op.create_table(
        "torchgate_gateways",
        sa.Column("gateway", name, primary_key=True),
        sa.Column("document", text, nullable=False),
    )
    op.create_table(
        "torchgate_secrets",
        sa.Column("name", name, primary_key=True),
        sa.Column("value", target, nullable=False),
    )
    op.create_table(
        "torchgate_feedback",
        sa.Column("answer", name, primary_key=True),
        sa.Column("item", sa.Integer, primary_key=True),
        sa.Column("model", target, nullable=False),
        sa.Column("version", target, nullable=False),
        sa.Column("predicted", target, nullable=False),
        sa.Column("label", target, nullable=False),
        sa.Column("is_correct", sa.Boolean, nullable=False),
        sa.Column("time", sa.Float(53), nullable=False),
    )
    op.execute("INSERT INTO torchgate_schema (version) VALUES (1)")
