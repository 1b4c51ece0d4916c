"""The commands of `isosim`; `service.cli` lists them."""
