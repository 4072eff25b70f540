"""The key of prediction ids keeps its value under its new name; old feedback is found by its time.

Releases without revisions find schema 2 and refuse the database.
"""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Rename the key, index the time, and tell older releases."""
    # A gateway between the two releases may have made a key under the new name. The newest ids are signed with it.
    op.execute(
        "UPDATE torchgate_secrets SET name = 'prediction_ids' WHERE name = 'receipts' AND NOT EXISTS "
        "(SELECT 1 FROM torchgate_secrets WHERE name = 'prediction_ids')"
    )
    op.execute("DELETE FROM torchgate_secrets WHERE name = 'receipts'")
    op.create_index("ix_torchgate_feedback_time", "torchgate_feedback", ["time"])
    op.execute("UPDATE torchgate_schema SET version = 2")
