"""The commands behind `isosim`; `service.cli` puts them together."""
