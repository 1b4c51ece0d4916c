"""Files that people own, read as tables: text, CSV, TSV, NDJSON, Parquet, Excel workbooks."""
