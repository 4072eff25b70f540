"""The prediction log: answered requests and their feedback, in Parquet files for later analysis and training."""
