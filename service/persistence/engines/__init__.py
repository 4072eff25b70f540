"""What differs between the databases that can hold the state: SQLite and PostgreSQL."""
