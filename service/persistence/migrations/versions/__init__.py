"""One module for each revision of the tables; a released one is never changed."""
