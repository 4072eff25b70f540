"""What was answered and what it really was, kept in Parquet files for those who look at it later."""
