"""The highest counter of a signed manifest, so that an older manifest is noticed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table; it is empty until a signed manifest is read."""
    op.create_table(
        "torchgate_manifest_counters",
        sa.Column("key_id", sa.String(100), primary_key=True),
        sa.Column("counter", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(100), nullable=False),
    )
