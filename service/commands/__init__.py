"""The commands of `isosim`, one module for each; `service.cli` registers them."""
