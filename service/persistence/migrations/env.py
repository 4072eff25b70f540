"""What Alembic runs for every command; the connection and its transaction are the caller's."""

from alembic import context

from service.persistence.tables import revisions, tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables,
    version_table=revisions.name,
    transactional_ddl=True,  # SQLite's, too: engine.py begins its transactions itself
)
with context.begin_transaction():
    context.run_migrations()
