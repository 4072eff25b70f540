"""What outlives the process: the database and what is kept in it."""
