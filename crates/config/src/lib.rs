//! The run configuration: sections, defaults, overrides and their documentation.
