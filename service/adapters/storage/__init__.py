"""Files that appear whole or not at all, in a folder or in object storage."""
