"""Bodies, queries and headers, as OpenAPI documents them."""
