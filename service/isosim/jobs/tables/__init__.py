"""Reads users' files as tables: text, CSV, TSV, NDJSON, Parquet, Excel workbooks."""
