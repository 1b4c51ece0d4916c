"""The commands of `isosim`, one module for each; `isosim.cli` registers them."""
